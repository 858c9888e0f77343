/* Prints the addresses of a name, one a line, as musl's resolver finds them. Exit code 2: there are none. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int count, char **words)
{
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found, *each;
    char text[INET6_ADDRSTRLEN];
    int failed;

    if (count != 2) {
        fprintf(stderr, "usage: musl-getent NAME\n");
        return 1;
    }
    failed = getaddrinfo(words[1], NULL, &wanted, &found);
    if (failed) {
        fprintf(stderr, "musl-getent: %s: %s\n", words[1], gai_strerror(failed));
        return 2;
    }
    for (each = found; each; each = each->ai_next) {
        const void *address = each->ai_family == AF_INET6
            ? (const void *)&((struct sockaddr_in6 *)each->ai_addr)->sin6_addr
            : (const void *)&((struct sockaddr_in *)each->ai_addr)->sin_addr;
        puts(inet_ntop(each->ai_family, address, text, sizeof text));
    }
    freeaddrinfo(found);
    return 0;
}
