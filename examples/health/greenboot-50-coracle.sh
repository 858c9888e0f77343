#!/bin/sh
# Greenboot: /etc/greenboot/check/required.d/50-coracle.sh, mode 755; only names that end in .sh are run. If it fails,
# greenboot reboots, and goes back to the former deployment when the tries are used up.
PATH=/usr/local/bin:/usr/bin:$PATH
exec coracle healthcheck --within 5m
