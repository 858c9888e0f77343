#!/bin/sh
# Greenboot: /etc/greenboot/check/required.d/50-coracle.sh, mode 755; only names that end in .sh are run. If it fails,
# greenboot reboots, and goes back to the former deployment when the tries are used up.
exec /usr/local/bin/coracle healthcheck --within 5m
