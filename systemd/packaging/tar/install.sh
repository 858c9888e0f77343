#!/bin/sh
# Installs coracle from this folder, upgrades it (pods keep running), or removes it, under systemd, OpenRC or none of
# them. POSIX sh; busybox is enough.
# usage: install.sh [--prefix DIR] [--root DIR] [--no-start]
#        install.sh --uninstall [--purge] [--prefix DIR]     (stops all pods in order; --purge removes all data, too)
set -eu
here=$(cd "$(dirname "$0")" && pwd)

#include functions.sh

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

prefix=/usr/local root= start=yes uninstall= purge=
while [ $# != 0 ]; do
    case $1 in
    --prefix) prefix=${2:?--prefix DIR}; shift ;;
    --root) root=${2:?--root DIR}; start=; shift ;;
    --no-start) start= ;;
    --uninstall) uninstall=yes ;;
    --purge) purge=yes ;;
    *) sed -n 's/^# usage: *//p; s/^#        //p' "$0" >&2; exit 2 ;;
    esac
    shift
done
# What it removes is this machine's: its services, its pods.
[ -z "$uninstall" ] || [ -z "$root" ] || fail "--root is only for installing"
program=$prefix/bin/coracle
[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "has to be started as root"

# What this machine's init is: `systemd`, `openrc` or `other`.
init_of() {
    if [ -d /run/systemd/system ] || { [ -n "$root" ] && [ -e "$root/usr/lib/systemd/systemd" ]; }; then
        echo systemd
    elif [ -x "$root/sbin/openrc-run" ] || [ -x "$root/usr/sbin/openrc-run" ]; then
        echo openrc
    else
        echo other
    fi
}
init=$(init_of)

# Prints where a directory is below --root: links there are meant to begin there, too.
inside() {
    left=$1 found='' links=0
    while [ -n "$left" ]; do
        name=${left%%/*}
        case $left in */*) left=${left#*/} ;; *) left='' ;; esac
        case $name in
        '' | .) ;;
        ..) found=${found%/*} ;;
        *)
            if to=$(readlink "$root$found/$name"); then
                links=$((links + 1))
                [ "$links" -le 40 ] || fail "too many links: $1"
                case $to in /*) found='' ;; esac
                left=$to/$left
            else
                found=$found/$name
            fi
            ;;
        esac
    done
    printf '%s' "$root$found"
}

completion() {
    folder=$(inside "$prefix/share/$2")
    mkdir -p "$folder"
    cp "$here/$1" "$folder/$3"
}

place() {
    "$here/coracle" install --prefix "$prefix" --root "${root:-/}"
    [ -n "$root" ] || [ "$init" != other ] || mkdir -p -m 0711 /run/coracle
    completion completions/coracle bash-completion/completions coracle
    completion completions/_coracle zsh/site-functions _coracle
    completion completions/coracle.fish fish/vendor_completions.d coracle.fish
}

openrc() {
    scripts=$(inside /etc/init.d) settings=$(inside /etc/conf.d) level=$(inside /etc/runlevels/default)
    mkdir -p "$scripts" "$settings" "$level"
    sed "s|@PROGRAM@|$program|" "$here/openrc/coracle.initd" >"$scripts/coracle.new"
    chmod 755 "$scripts/coracle.new"
    mv -f "$scripts/coracle.new" "$scripts/coracle"
    [ -e "$settings/coracle" ] || [ -L "$settings/coracle" ] || cp "$here/openrc/coracle.confd" "$settings/coracle"
    [ -e "$level/coracle" ] || [ -L "$level/coracle" ] || ln -s /etc/init.d/coracle "$level/coracle"
    if [ -n "$start" ]; then rc-service coracle restart; fi
}

install_all() {
    if [ "$init" = systemd ] && [ -z "$root" ]; then
        "$here/coracle" install --prefix "$prefix" ${start:+--now}
        completion completions/coracle bash-completion/completions coracle
        completion completions/_coracle zsh/site-functions _coracle
        completion completions/coracle.fish fish/vendor_completions.d coracle.fish
        return
    fi
    place
    # Units of another init would only be in the way.
    if [ "$init" != systemd ]; then
        find "$(inside /etc/systemd/system)" -name 'coracle*' -exec rm -f {} +
        rm -f "$(inside /etc/tmpfiles.d)/coracle.conf"
        for folder in etc/systemd/system/multi-user.target.wants etc/systemd/system etc/systemd/logind.conf.d \
            etc/systemd etc/tmpfiles.d; do
            rmdir "$(inside "$folder")" 2>/dev/null || :
        done
    fi
    case $init in
    openrc) openrc ;;
    other)
        echo "Have your init start this program at boot, and again whenever it ends:"
        echo "  $program run"
        echo "A line of busybox's /etc/inittab:   ::respawn:$program run"
        echo "When the machine goes down:         ::shutdown:$program end-pods --grace=20"
        echo "At each boot, to judge an upgrade that a power cut has interrupted:"
        echo "  ::once:/bin/sh -c 'test ! -x $program.former || exec $program.former upgrade --watch'"
        ;;
    esac
}

uninstall_all() {
    case $init in
    systemd) "$program" uninstall --prefix "$prefix" --stop-pods ${purge:+--purge} ;;
    *)
        if [ "$init" = openrc ] && [ -e /etc/init.d/coracle ]; then
            rc-service --quiet coracle status >/dev/null || ! pods_left || rc-service coracle start
            rc-service coracle stop_pods
            rm -f /etc/init.d/coracle /etc/runlevels/*/coracle
            [ -z "$purge" ] || rm -f /etc/conf.d/coracle
        elif [ -x "$program" ] && "$program" get node >/dev/null 2>&1; then
            fail "the agent runs: have your init stop it, and \`$program end-pods\` its pods"
        fi
        if pods_left; then fail "pods are still running: \`$program end-pods\` ends them"; fi
        end_trial "$program"
        remove_tree /run/coracle
        [ -z "$purge" ] || remove_data
        rm -f "$prefix"/share/man/man1/coracle.1 "$prefix"/share/man/man1/coracle-*.1 "$program"
        ;;
    esac
    rm -f "$prefix/share/bash-completion/completions/coracle" "$prefix/share/zsh/site-functions/_coracle" \
        "$prefix/share/fish/vendor_completions.d/coracle.fish"
}

if [ -n "$uninstall" ]; then uninstall_all; else install_all; fi
