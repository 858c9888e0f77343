#!/bin/sh
# Makes an image archive of real programs, unpacked from Debian packages over Debian's static busybox.
# usage: make-server-image.sh nginx|python|resolvers|gateway|kiosk OUT.tar NAME[:TAG]
#   nginx      nginx; run it with `nginx -g 'daemon off;'`: it serves /var/www/html on port 80, the client's address at /who
#   python     python3 with its standard library
#   resolvers  the C libraries' resolvers: `getent` (glibc) and `musl-getent NAME` (musl; needs package musl-tools)
#   gateway    mosquitto (an MQTT broker) with its clients, influxd (a time series database), socat
#   kiosk      w3m, a browser for terminals
# CORACLE_DEBS=FOLDER keeps the downloaded packages there.
set -eu

usage="usage: make-server-image.sh nginx|python|resolvers|gateway|kiosk OUT.tar NAME[:TAG]"
what=${1:?$usage}
out=${2:?$usage}
name=${3:?$usage}
here=$(cd "$(dirname "$0")" && pwd)

case $what in
    nginx) packages="libc6 nginx nginx-common libcrypt1 libpcre2-8-0 libssl3 zlib1g" ;;
    python) packages="libc6 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libexpat1 zlib1g" ;;
    resolvers) packages="libc6 libc-bin" ;;
    gateway)
        packages="libc6 mosquitto mosquitto-clients libmosquitto1 influxdb socat libcjson1 libdlt2 libwebsockets17 libssl3
            libcap2 zlib1g libsystemd0 libgcrypt20 libgpg-error0 liblz4-1 liblzma5 libzstd1 libwrap0 libnsl2 libtirpc3
            libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1"
        ;;
    kiosk) packages="libc6 w3m libgc1 libgpm2 libssl3 libtinfo6 ncurses-base zlib1g" ;;
    *) echo "$usage" >&2; exit 1 ;;
esac

work=$(mktemp -d)
part=
trap 'rm -rf "$work" "$part"' EXIT
trap 'exit 1' HUP INT TERM

debs=${CORACLE_DEBS:-$work/debs}
over=$work/over
mkdir -p "$debs" "$over"
chmod 755 "$over"
for package in $packages; do
    set -- "$debs/${package}"_*.deb
    if [ ! -f "$1" ]; then
        # Several of these may run at once: none of them may see half a package.
        part=$(mktemp -d "$debs/.part.XXXXXX")
        (cd "$part" && apt-get -o APT::Sandbox::User=root -qq download "$package" >/dev/null) ||
            { echo "make-server-image.sh: could not download package $package: run apt-get update" >&2; exit 1; }
        mv "$part"/*.deb "$debs"
        rmdir "$part"
        set -- "$debs/${package}"_*.deb
    fi
    dpkg-deb --fsys-tarfile "$1" | tar -C "$over" --keep-directory-symlink -xf -
done
rm -rf "$over"/usr/share/doc "$over"/usr/share/man "$over"/usr/share/lintian "$over"/usr/lib/*/gconv "$over"/lib/*/gconv

case $what in
    nginx)
        mkdir -p "$over/var/log/nginx" "$over/var/lib/nginx" "$over/run" "$over/var/www/html"
        cp "$over/usr/share/nginx/html/index.html" "$over/var/www/html/index.html"
        cat >"$over/etc/nginx/nginx.conf" <<EOF
user www-data;
worker_processes 1;
error_log /dev/stderr;
events { worker_connections 256; }
http {
    access_log /dev/stdout;
    server {
        listen 80 default_server;
        listen [::]:80 default_server;
        location / { root /var/www/html; }
        location = /who { default_type text/plain; return 200 "\$remote_addr\\n"; }
    }
}
EOF
        ;;
    python)
        ln -s python3.11 "$over/usr/bin/python3"
        # A small server needs none of these parts, which are half of the package.
        for part in lib2to3 pydoc_data ensurepip idlelib unittest sqlite3 dbm curses distutils wsgiref xmlrpc; do
            rm -rf "$over/usr/lib/python3.11/$part"
        done
        rm -rf "$over"/usr/lib/python3.11/config-* "$over"/usr/lib/*/gconv "$over"/usr/share
        ;;
    resolvers)
        mkdir -p "$over/etc" "$over/usr/bin"
        printf 'hosts: files dns\n' >"$over/etc/nsswitch.conf"
        rm -rf "$over/sbin" "$over/etc/ld.so.conf" "$over/etc/ld.so.conf.d" "$over/usr/lib/locale"
        command -v musl-gcc >/dev/null ||
            { echo "make-server-image.sh: musl-gcc is needed: apt-get install musl-tools" >&2; exit 1; }
        musl-gcc -static -O2 -o "$over/usr/bin/musl-getent" "$here/musl-getent.c"
        ;;
esac
sh "$here/make-image.sh" "$out" "$name" "$over"
