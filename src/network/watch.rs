//! The watch on links, addresses and routes. The kernel reports changes on a descriptor, including the agent's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::netlink::Subscription;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV6_ROUTE`, and the groups
/// `RTNLGRP_IPV4_NETCONF` and `RTNLGRP_IPV6_NETCONF`: forwarding and other switches.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400 | 1 << 23 | 1 << 24;
/// `RTM_NEWADDR` to `RTM_DELROUTE`; links come before them and switches after.
const ADDRESSES: std::ops::RangeInclusive<u16> = 20..=25;
/// The maximum of datagrams read at once; there may be more.
const MOST: usize = 1000;

/// What may have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Interfaces (existence, state, MTU, bridge) and sysctls (forwarding).
    pub links: bool,
    /// Addresses or routes.
    pub addresses: bool,
}

/// Receives changes in the namespace it was opened in. Non-blocking: wait until it is readable, then `drain`.
#[derive(Debug)]
pub struct Watch {
    subscription: Subscription,
}

impl Watch {
    /// Starts to receive all changes.
    pub fn open() -> io::Result<Self> {
        let subscription = Subscription::open(GROUPS)?;
        Ok(Self { subscription })
    }

    /// What may have changed since the last call. If the kernel dropped messages: everything.
    pub fn drain(&self) -> io::Result<Change> {
        let mut change = Change::default();
        for _ in 0..MOST {
            match self.subscription.receive() {
                Ok(Some(kinds)) => {
                    for kind in kinds {
                        let addresses = ADDRESSES.contains(&kind);
                        change.addresses |= addresses;
                        change.links |= !addresses;
                    }
                }
                Ok(None) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    change = Change {
                        links: true,
                        addresses: true,
                    };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(change)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}
