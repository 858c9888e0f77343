SUMMARY = "Run Kubernetes Pods from files on one Linux machine"
HOMEPAGE = "https://coracle.dev/"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=22a53954e4e0ec258dfce4391e905dac"

# The archive that `systemd/packaging/build tar` makes, with a static program: CORACLE_ARCHIVES names the folder of the
# archives, in local.conf. Nothing is compiled, so that devices run the bytes that were tested and signed.
PV = "0.3.0"
CORACLE_ARCHIVES ?= "${TOPDIR}/coracle"
CORACLE_ARCH:x86-64 = "amd64"
CORACLE_ARCH:aarch64 = "arm64"
CORACLE_ARCH:arm = "armhf"
CORACLE_ARCH:riscv64 = "riscv64"
COMPATIBLE_HOST = "(x86_64|aarch64|arm|riscv64).*-linux.*"
CORACLE_NAME = "coracle-${PV}-linux-${CORACLE_ARCH}"
SRC_URI = "file://${CORACLE_ARCHIVES}/${CORACLE_NAME}.tar.gz"
S = "${WORKDIR}/${CORACLE_NAME}"

inherit systemd

# The program makes its own files: on this machine, by an emulator.
DEPENDS = "qemu-native"
inherit qemu

do_compile[noexec] = "1"
do_configure[noexec] = "1"

do_install() {
    run="${@qemu_target_binary(d)}"
    # The program runs here for its own architecture, else on the emulator.
    if ${S}/coracle --version >/dev/null 2>&1; then run=; fi
    $run ${S}/coracle install --prefix ${prefix} --root ${D}
    # The emulator's own view of its file may be another one.
    install -m 0755 ${S}/coracle ${D}${bindir}/coracle
    install -d ${D}${systemd_system_unitdir} ${D}${nonarch_libdir}/tmpfiles.d
    mv ${D}${sysconfdir}/systemd/system/*.service ${D}${systemd_system_unitdir}
    mv ${D}${sysconfdir}/tmpfiles.d/coracle.conf ${D}${nonarch_libdir}/tmpfiles.d
    rm -rf ${D}${sysconfdir}/systemd ${D}${sysconfdir}/tmpfiles.d ${D}${localstatedir}
    install -D -m 0644 ${S}/completions/coracle ${D}${datadir}/bash-completion/completions/coracle
}

SYSTEMD_SERVICE:${PN} = "coracle.service"
# Images and manifests of the device come from recipes of its own: ${sysconfdir}/coracle/manifests and
# ${datadir}/coracle/images.
CONFFILES:${PN} = "${sysconfdir}/coracle/config.yaml"
FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/tmpfiles.d ${sysconfdir}/coracle"
RRECOMMENDS:${PN} = "nftables kernel-module-overlay kernel-module-bridge kernel-module-veth kernel-module-nf-tables"
# A static program without symbols.
INSANE_SKIP:${PN} += "already-stripped ldflags"
