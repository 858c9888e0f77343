#!/bin/sh
# Makes a small image archive (a docker-archive, as of `docker save`) from Debian's static busybox, with the files
# of a folder on top if one is given.
# usage: make-image.sh OUT.tar [NAME[:TAG] [FOLDER]]
# For another architecture: BUSYBOX=FILE ARCH=arm64 make-image.sh …
set -eu

out=${1:?usage: make-image.sh OUT.tar [NAME[:TAG] [FOLDER]]}
name=${2:-docker.io/library/busybox:latest}
over=${3:-}

busybox=${BUSYBOX:-$(command -v busybox)} || busybox=
if [ -z "$busybox" ] || ldd "$busybox" >/dev/null 2>&1; then
    echo "make-image.sh: a static busybox is needed: apt-get install busybox-static" >&2
    exit 1
fi
case ${ARCH:-$(uname -m)} in
    x86_64) arch=amd64 ;;
    i?86) arch=386 ;;
    aarch64) arch=arm64 ;;
    arm64) arch=arm64 ;;
    arm*) arch=arm ;;
    *) arch=${ARCH:-$(uname -m)} ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

root=$work/root
mkdir -p "$root/bin" "$root/etc" "$root/root" "$root/tmp" "$root/proc" "$root/sys" "$root/dev" "$root/var/www" "$root/home" "$root/usr"
chmod 755 "$root" "$root"/* "$root/var/www"
chmod 700 "$root/root"
chmod 1777 "$root/tmp"
cp "$busybox" "$root/bin/busybox"
chmod 755 "$root/bin/busybox"
# One process makes hard links for all applets; where it cannot run, they are those of this machine's.
if [ -z "${ARCH:-}" ]; then
    "$root/bin/busybox" --install "$root/bin"
else
    for applet in $(busybox --list); do
        ln -f "$root/bin/busybox" "$root/bin/$applet" 2>/dev/null || true
    done
fi
ln -s bin "$root/sbin"
ln -s ../bin "$root/usr/bin"
cat >"$root/etc/passwd" <<EOF
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
EOF
cat >"$root/etc/group" <<EOF
root:x:0:
daemon:x:1:
www-data:x:33:
nogroup:x:65534:
EOF
echo "<h1>It works</h1>" >"$root/var/www/index.html"
chmod 644 "$root/etc/passwd" "$root/etc/group" "$root/var/www/index.html"
[ -z "$over" ] || tar -C "$over" -cf - . | tar -C "$root" --keep-directory-symlink -xf -

tar -C "$root" --numeric-owner --owner=0 --group=0 --mtime=@0 --sort=name -cf "$work/layer.tar" .
diff_id=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
printf '%s' "{\"architecture\":\"$arch\",\"os\":\"linux\",\"created\":\"1970-01-01T00:00:00Z\",\"config\":{\"Cmd\":[\"sh\"],\"Env\":[\"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"]},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$diff_id\"]},\"history\":[{\"created\":\"1970-01-01T00:00:00Z\",\"created_by\":\"make-image.sh\"}]}" >"$work/config"
id=$(sha256sum "$work/config" | cut -d' ' -f1)
mv "$work/config" "$work/$id.json"
mv "$work/layer.tar" "$work/$diff_id.tar"
printf '%s' "[{\"Config\":\"$id.json\",\"RepoTags\":[\"$name\"],\"Layers\":[\"$diff_id.tar\"]}]" >"$work/manifest.json"

# The archive is renamed when it is complete, because the agent may watch the directory.
tar -C "$work" --numeric-owner --owner=0 --group=0 --mtime=@0 -cf "$out.part" manifest.json "$id.json" "$diff_id.tar"
mv "$out.part" "$out"
