################################################################################
#
# coracle
#
################################################################################

# The archive that `systemd/packaging/build tar` makes, with a static program.
CORACLE_VERSION = 0.3.0
CORACLE_ARCH_x86_64 = amd64
CORACLE_ARCH_aarch64 = arm64
CORACLE_ARCH_arm = armhf
CORACLE_ARCH_riscv64 = riscv64
CORACLE_SOURCE = coracle-$(CORACLE_VERSION)-linux-$(CORACLE_ARCH_$(ARCH)).tar.gz
CORACLE_SITE = $(call qstrip,$(BR2_PACKAGE_CORACLE_ARCHIVES))
CORACLE_SITE_METHOD = file
CORACLE_LICENSE = Apache-2.0
CORACLE_LICENSE_FILES = LICENSE

# The program makes its own files, on an emulator if it is for another architecture.
ifeq ($(BR2_x86_64),)
CORACLE_DEPENDENCIES += host-qemu
CORACLE_RUN = $(HOST_DIR)/bin/qemu-$(ARCH)
endif

define CORACLE_INSTALL_TARGET_CMDS
	$(CORACLE_RUN) $(@D)/coracle install --prefix /usr --root $(TARGET_DIR)
	$(INSTALL) -D -m 0755 $(@D)/coracle $(TARGET_DIR)/usr/bin/coracle
	rm -rf $(TARGET_DIR)/etc/systemd/system/coracle*.service \
		$(TARGET_DIR)/etc/systemd/system/multi-user.target.wants/coracle.service \
		$(TARGET_DIR)/etc/tmpfiles.d/coracle.conf
endef

define CORACLE_INSTALL_INIT_SYSTEMD
	$(CORACLE_RUN) $(@D)/coracle install --prefix /usr --root $(TARGET_DIR)
	$(INSTALL) -D -m 0755 $(@D)/coracle $(TARGET_DIR)/usr/bin/coracle
endef

define CORACLE_INSTALL_INIT_OPENRC
	sed 's|@PROGRAM@|/usr/bin/coracle|' $(@D)/openrc/coracle.initd > $(@D)/coracle.initd
	$(INSTALL) -D -m 0755 $(@D)/coracle.initd $(TARGET_DIR)/etc/init.d/coracle
	$(INSTALL) -D -m 0644 $(@D)/openrc/coracle.confd $(TARGET_DIR)/etc/conf.d/coracle
endef

# busybox: a line of /etc/inittab that starts it again whenever it ends.
define CORACLE_INSTALL_INIT_SYSV
	grep -q 'bin/coracle run' $(TARGET_DIR)/etc/inittab 2>/dev/null || \
		printf '%s\n' '::respawn:/usr/bin/coracle run' \
			'::once:/bin/sh -c "test ! -x /usr/bin/coracle.former || exec /usr/bin/coracle.former upgrade --watch"' \
			'::shutdown:/usr/bin/coracle end-pods --grace=20' >> $(TARGET_DIR)/etc/inittab
endef

$(eval $(generic-package))
