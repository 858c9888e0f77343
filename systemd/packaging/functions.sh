# What the packages' scripts share; `build` puts it into each of them. POSIX sh without any program but those of
# coreutils or busybox. Whatever is missing is fine: every step may be repeated after a power cut.

# Prints the mount points below a directory, the newest first, as /proc shows them (with octal escapes).
mounts_below() {
    found=
    while read -r _ _ _ _ point _; do
        case $point in
        "$1"/*) found="$point
$found" ;;
        esac
    done </proc/self/mountinfo
    printf '%s' "$found"
}

# Unmounts everything below a directory. What is mounted there may be data of the machine that a pod used.
unmount_below() {
    for _ in 1 2 3 4 5; do
        mounts_below "$1" | while read -r point; do
            point=$(printf '%b.' "$(printf '%s' "$point" | sed 's/\\\([0-7][0-7][0-7]\)/\\0\1/g')")
            umount "${point%.}" 2>/dev/null || umount -l "${point%.}" 2>/dev/null || :
        done
        [ -n "$(mounts_below "$1")" ] || return 0
    done
    echo "coracle: $1 is kept: something mounted below it cannot be unmounted" >&2
    return 1
}

# Removes a directory, but never what is mounted below it. A directory that is itself a mount point is emptied.
remove_tree() {
    if [ -L "$1" ]; then
        rm -f "$1"
    elif [ -d "$1" ]; then
        unmount_below "$1" || return 1
        find "$1" -xdev -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {} +
        rmdir "$1" 2>/dev/null || :
    fi
}

# Whether pods are left: a shim is the process that holds one.
pods_left() {
    cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q '[s]him /run/coracle/pods/'
}

# Stops all pods in order, then the agent; `$1` is the program that starts and stops services. Only an agent can stop
# pods gracefully; the stop of coracle-pods.service ends what is left of them.
stop_pods() {
    if pods_left; then
        "$1" start coracle.service || :
    fi
    [ ! -d /run/coracle ] || : >/run/coracle/stop-pods
    "$1" stop coracle.service || :
    rm -f /run/coracle/stop-pods
    "$1" stop coracle-pods.service || :
}

# Ends the trial of a program that `coracle upgrade` has put in place of `$1`: what is installed or removed now decides.
end_trial() {
    if [ -d /run/systemd/system ]; then systemctl stop coracle-upgrade.service >/dev/null 2>&1 || :; fi
    # A watcher without systemd ends without it.
    rm -rf /var/lib/coracle/upgrade
    rm -f "$1.former" "$1.new" "$1.older"
}

# Removes settings, manifests, images, volumes and logs. Data of hostPath volumes is elsewhere, and stays.
remove_data() {
    remove_tree /run/coracle || return 1
    for state in /var/lib/coracle/pods/*; do
        for log in /var/log/pods/*_"${state##*/}"; do
            remove_tree "$log" || return 1
        done
    done
    # Other programs may log here too.
    rmdir /var/log/pods 2>/dev/null || :
    remove_tree /var/lib/coracle || return 1
    remove_tree /etc/coracle || return 1
    # Removed by the agent when it stops, or by a reboot.
    rm -f /run/systemd/logind.conf.d/99-coracle.conf
}

# Prints the program of a unit that `coracle install` wrote; nothing if it wrote none.
installed_program() {
    [ -f /etc/systemd/system/coracle.service ] || return 0
    [ ! -L /etc/systemd/system/coracle.service ] || return 0
    sed -n 's|^ExecStart=\(/.*/bin/coracle\) run$|\1|p' /etc/systemd/system/coracle.service
}

# Removes what `coracle install` put beside the package's files: units there would hide the package's. A unit that
# was edited is kept under another name.
replace_installed() {
    program=$(installed_program)
    [ -n "$program" ] || return 0
    for unit in /usr/lib/systemd/system/coracle*.*; do
        old=/etc/systemd/system/${unit##*/}
        [ -f "$old" ] && [ ! -L "$old" ] || continue
        if [ "$(sed "s|$program|/usr/bin/coracle|g" "$old")" = "$(cat "$unit")" ]; then
            rm -f "$old"
        else
            echo "coracle: $old differs from the package's unit; it is now $old.before-package"
            mv -f "$old" "$old.before-package"
        fi
        # The link of `coracle install` names the file that is gone.
        for link in /etc/systemd/system/*.wants/"${unit##*/}"; do
            if [ "$(readlink "$link" || :)" = "../${unit##*/}" ]; then rm -f "$link"; fi
        done
    done
    rm -f /etc/tmpfiles.d/coracle.conf
    prefix=${program%/bin/coracle}
    rm -f "$prefix"/share/man/man1/coracle.1 "$prefix"/share/man/man1/coracle-*.1
    # Pods that run keep the program that they were started with.
    [ "$prefix" = /usr ] || rm -f "$program"
    end_trial "$program"
}
