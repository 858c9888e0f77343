"""Programs for upgrades, with their signatures: one that is as good as the program under test, and two that are not."""

import shlex
import subprocess

# Both say that they are version 9. The first has state of another format: when it is to be the agent, it spoils the node's
# records and ends. The second kills a pod, then becomes an agent.
CRASHES = r"""system("cd / && for f in var/lib/coracle/*.json run/coracle/*.json var/lib/coracle/pods/*/*.json run/coracle/pods/*/*.json; do "
        "test ! -e $f || echo '{\"format\":2,\"version\":\"9.0.0\"}' >$f; done"); return 1;"""
LOSES = 'system("pkill -KILL -o -f \'[s]him /run/coracle\'"); a[0] = "/payload/coracle"; execv(a[0], a); return 1;'

SOURCE = r"""#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **a) {
    for (int i = 1; i < n; i++)
        if (!strcmp(a[i], "version")) return puts("{\"client\":\"9.0.0\",\"stateFormat\":FORMAT}") < 0;
    RUN
}
"""


# The compiler may be in a chroot: the program comes by its output.
COMPILE = 'file=$(mktemp) && trap "rm $file" EXIT && "$0" -w -static -s -x c -o "$file" - && cat "$file"'


def fill(folder, program, compiler):
    """Makes the programs, a key and a stranger's, and signatures. The good program is `coracle` with "newer" at its end; only
    its signature is kept."""
    folder.mkdir()
    for key in ("owner", "stranger"):
        new = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", folder / f"{key}.pem"]
        subprocess.run(new, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["openssl", "pkey", "-in", folder / "owner.pem", "-pubout", "-out", folder / "owner.pub"], check=True)
    for name, run, state in (("crashes", CRASHES, "2"), ("loses", LOSES, "1")):
        *place, gcc = shlex.split(compiler)
        source = SOURCE.replace("RUN", run).replace("FORMAT", state).encode()
        made = subprocess.run([*place, "sh", "-euc", COMPILE, gcc], input=source, stdout=subprocess.PIPE, check=True)
        (folder / name).write_bytes(made.stdout)
        (folder / name).chmod(0o755)
    newer = folder / "newer"
    newer.write_bytes(program.read_bytes() + b"newer")
    first = folder / "first"
    first.symlink_to(program)
    for name, key in (("newer", "owner"), ("first", "owner"), ("crashes", "owner"), ("loses", "owner"), ("newer", "stranger")):
        ending = "sig" if key == "owner" else key
        sign = ["openssl", "dgst", "-sha256", "-sign", folder / f"{key}.pem", "-out", folder / f"{name}.{ending}", folder / name]
        subprocess.run(sign, check=True)
    newer.unlink()
    first.unlink()
    for key in ("owner", "stranger"):
        (folder / f"{key}.pem").unlink()
