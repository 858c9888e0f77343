#!/bin/sh
# Builds coracle, makes the images and runs the pods of examples/quickstart until Ctrl-C.
# usage: quickstart.sh [quickstart|gateway|kiosk]
# All its files are in a temporary directory, which it removes at the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."

example=${1:-quickstart}
fail() { printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2; exit 1; }

case $example in
    quickstart | gateway | kiosk) ;;
    *) fail "there is no example \`$example\` to try" "usage: quickstart.sh [quickstart|gateway|kiosk]" ;;
esac
[ "$(id -u)" = 0 ] || fail "containers can only be made by root" "run it with sudo"
command -v cargo >/dev/null || fail "cargo is missing" "install Rust's toolchain: https://rustup.rs"

missing=""
for package in gcc libc6-dev libseccomp-dev busybox-static nftables; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing$missing"
    apt-get update -qq || fail "apt-get update failed" "install by hand:$missing"
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
        fail "could not install$missing" "install them by hand"
fi

echo "building coracle (a few minutes the first time)"
cargo build --release --quiet
coracle=$(ls -t "${CARGO_TARGET_DIR:-target}"/*/release/coracle 2>/dev/null | head -n 1)
[ -x "$coracle" ] || fail "the build left no binary" "run \`cargo build --release\` and look at its output"

work=$(mktemp -d /tmp/coracle-quickstart.XXXXXX)
mkdir "$work/images"
case $example in
    quickstart) sh "$here/make-image.sh" "$work/images/busybox.tar" docker.io/library/busybox:quickstart ;;
    *)
        echo "making an image of Debian packages"
        sh "$here/make-server-image.sh" "$example" "$work/images/$example.tar" "docker.io/library/$example:example"
        ;;
esac

name=coracle-quickstart-$$
export CORACLE_SOCKET="$work/run/coracle.sock"
# The agent has a session of its own, so that Ctrl-C reaches only this script: a second signal would leave pods running.
setsid "$coracle" run --manifests "$here/$example" --root "$work/root" --run-dir "$work/run" --log-dir "$work/logs" \
    --preload "$work/images" --cgroup-parent "/$name" --bridge coracle-demo --stop-pods-on-exit 2>"$work/agent.log" &
agent=$!

leave() {
    trap '' INT TERM
    echo
    echo "stopping the pods"
    kill -TERM "$agent" 2>/dev/null || true
    wait "$agent" || true
    umount "$work/run/pods" "$work/run/netns" "$work/run/configuration" 2>/dev/null || true
    for group in /sys/fs/cgroup/"$name" /sys/fs/cgroup/*/"$name"; do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    rm -rf "$work"
    exit 0
}
trap leave INT TERM

while [ ! -S "$CORACLE_SOCKET" ]; do
    kill -0 "$agent" 2>/dev/null || { cat "$work/agent.log" >&2; rm -rf "$work"; exit 1; }
    sleep 0.1
done
cat <<EOF

The agent is up. Try these in another terminal:
  export CORACLE_SOCKET=$CORACLE_SOCKET
  $coracle get pods
EOF
case $example in
    quickstart)
        cat <<EOF
  $coracle logs -f hello -c writer
  $coracle exec -it hello -c writer -- sh
  $coracle logs -f visitor
  curl http://127.0.0.1:8480/
EOF
        ;;
    gateway)
        cat <<EOF
  $coracle logs -f flow
  $coracle exec database -- wget -qO- 'http://127.0.0.1:8086/query?db=site&q=SELECT+*+FROM+reading+LIMIT+3'
  $coracle delete pod database
EOF
        ;;
    kiosk)
        cat <<EOF
  $coracle attach -it kiosk    (ctrl-p ctrl-q detaches)
EOF
        ;;
esac
cat <<EOF
Pods are the files in $here/$example: edit one and see what happens. Ctrl-C stops everything.

EOF
"$coracle" get pods --watch 2>/dev/null &
wait $! || true
leave
