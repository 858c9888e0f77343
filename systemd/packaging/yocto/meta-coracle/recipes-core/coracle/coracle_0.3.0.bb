SUMMARY = "Run Kubernetes Pods from files on one Linux machine"
DESCRIPTION = "One static program that turns a machine into a node: it runs pods from files, without a control plane and \
    without a container engine."
HOMEPAGE = "https://coracle.dev/"
SECTION = "admin"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=22a53954e4e0ec258dfce4391e905dac"

# The archive that `systemd/packaging/build tar` makes, with a static program: CORACLE_ARCHIVES names the folder of the
# archives, in local.conf. Nothing is compiled, so that devices run the bytes that were tested and signed.
CORACLE_ARCHIVES ?= "${TOPDIR}/coracle"
CORACLE_ARCH:x86-64 = "amd64"
CORACLE_ARCH:aarch64 = "arm64"
CORACLE_ARCH:arm = "armhf"
CORACLE_ARCH:riscv64 = "riscv64"
COMPATIBLE_HOST = "(x86_64|aarch64|arm|riscv64).*-linux.*"
CORACLE_NAME = "coracle-${PV}-linux-${CORACLE_ARCH}"
SRC_URI = "file://${CORACLE_ARCHIVES}/${CORACLE_NAME}.tar.gz"
# Releases before 5.1 have no UNPACKDIR; from 5.3 on nothing else is allowed.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${CORACLE_NAME}"

inherit bash-completion features_check qemu systemd

# What starts the agent here is a unit. Other systems take a line of /etc/inittab (`coracle manual install`).
REQUIRED_DISTRO_FEATURES = "systemd"

# The program makes its own files: on this machine, by an emulator.
DEPENDS += "qemu-native"

do_configure[noexec] = "1"

# Not in do_install: its owners of files come from a preloaded library, which a static program does not load.
do_compile() {
    run="${@qemu_target_binary(d)}"
    # The program runs here for its own architecture, else on the emulator.
    if ${S}/coracle --version >/dev/null 2>&1; then run=; fi
    rm -rf ${B}/tree
    $run ${S}/coracle install --prefix ${prefix} --root ${B}/tree
}

do_install() {
    # The emulator's own view of its file may be another one.
    install -D -m 0755 ${S}/coracle ${D}${bindir}/coracle
    install -d ${D}${sysconfdir}/coracle/images
    install -d -m 0700 ${D}${sysconfdir}/coracle/manifests
    install -m 0644 ${B}/tree${sysconfdir}/coracle/config.yaml ${D}${sysconfdir}/coracle
    install -d ${D}${systemd_system_unitdir} ${D}${nonarch_libdir}/tmpfiles.d ${D}${mandir}/man1
    install -m 0644 ${B}/tree${sysconfdir}/systemd/system/*.service ${D}${systemd_system_unitdir}
    install -m 0644 ${B}/tree${sysconfdir}/tmpfiles.d/coracle.conf ${D}${nonarch_libdir}/tmpfiles.d
    install -m 0644 ${B}/tree${prefix}/share/man/man1/*.1 ${D}${mandir}/man1
    install -D -m 0644 ${S}/completions/coracle ${D}${datadir}/bash-completion/completions/coracle
}

SYSTEMD_SERVICE:${PN} = "coracle.service"
# Images and manifests of the device come from recipes of its own: ${sysconfdir}/coracle/manifests and
# ${datadir}/coracle/images.
CONFFILES:${PN} = "${sysconfdir}/coracle/config.yaml"
FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/tmpfiles.d"
RRECOMMENDS:${PN} = "nftables kernel-module-overlay kernel-module-bridge kernel-module-veth kernel-module-nf-tables"
# A static program without symbols.
INSANE_SKIP:${PN} += "already-stripped ldflags"
