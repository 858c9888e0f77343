//! Whether a container's image is pulled, and when a pull is too many (kubelet: `pkg/kubelet/images`).

use super::PodState;
use super::verdict::Verdict;
use crate::spec::PullPolicy;
use crate::types::{Rate, Time};

/// Where the stored image of a name came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An archive: no registry knows it better.
    Archive,
    /// Its registry, which may have a newer one by that name.
    Registry,
}

/// The image that is stored under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Where it came from.
    pub source: Source,
    /// Whether the pod may use it without its registry (`types::image_access`).
    pub usable: bool,
}

/// What to do for a container's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Run the stored image.
    Use,
    /// Report that there is none.
    Refuse,
    /// Ask the registry.
    Pull,
}

/// What a pull policy means for the image that is stored under a name, if there is one. A kubelet with `Always` asks
/// the registry for every image; here one from an archive is used, so that offline nodes need no other policy. An image
/// that the pod may not use is as good as none.
pub fn way(policy: PullPolicy, stored: Option<Stored>) -> Way {
    let usable = stored.filter(|stored| stored.usable);
    match (policy, usable.map(|stored| stored.source)) {
        (PullPolicy::Never, None) => Way::Refuse,
        (PullPolicy::Always, Some(Source::Registry)) => Way::Pull,
        (PullPolicy::Always | PullPolicy::IfNotPresent, None) => Way::Pull,
        (PullPolicy::Always, Some(Source::Archive))
        | (PullPolicy::IfNotPresent | PullPolicy::Never, Some(_)) => Way::Use,
    }
}

/// How long a registry that could not be asked is not asked again for images that are stored: each attempt may take a
/// minute.
pub const UNREACHABLE_MS: u64 = 60_000;

/// What a pull has for its image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that images may use, with those that have arrived of this one.
    pub bytes: u64,
    /// Inodes that images may use.
    pub inodes: u64,
}

/// A pull whose image did not fit on the disk. Another attempt writes all of it again, as far as it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit {
    /// When it failed.
    pub at: Time,
    /// How much room there was.
    pub room: Room,
}

/// How much more room counts as clearly more: logs and other images come and go.
const MORE: Room = Room {
    bytes: 32 << 20,
    inodes: 4096,
};

/// An image may get smaller, or share more with others.
const UNFIT_MS: u64 = 12 * 3_600_000;

impl Unfit {
    /// Whether the image fits as little with this room.
    pub fn still(&self, room: Room, now: Time) -> bool {
        now.since(self.at) < UNFIT_MS
            && room.bytes < self.room.bytes.saturating_add(MORE.bytes)
            && room.inodes < self.room.inodes.saturating_add(MORE.inodes)
    }
}

/// How much has arrived, rounded down: 100 only at the end.
pub fn percent(done: u64, total: u64) -> u8 {
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    u8::try_from(percent.min(100)).unwrap_or(100)
}

/// Whether the pod still wants the image that is being looked for. It does not once it goes, has failed, or was given
/// another image.
pub fn is_wanted(pod: &PodState) -> bool {
    let failed: Option<&Verdict> = pod.verdict.as_ref();
    pod.stopping().is_none() && failed.is_none() && !pod.look_up.edited
}

/// A token bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Thousandths of a pull that were taken and have not come back.
    taken: u64,
    at: Time,
}

impl Bucket {
    /// Takes a pull; `false` if there is none.
    pub fn take(&mut self, rate: Rate, now: Time) -> bool {
        const WHOLE: u64 = 1000;
        if rate.qps == 0 {
            return true;
        }
        // A pull a second is a thousandth a millisecond.
        let back = now.since(self.at).saturating_mul(u64::from(rate.qps));
        (self.taken, self.at) = (self.taken.saturating_sub(back), now);
        let fits = self.taken + WHOLE <= u64::from(rate.burst) * WHOLE;
        if fits {
            self.taken += WHOLE;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_did_not_fit_is_pulled_again_with_clearly_more_room_or_after_half_a_day() {
        const MIB: u64 = 1 << 20;
        let room = |bytes, inodes| Room { bytes, inodes };
        let unfit = Unfit {
            at: Time(1000),
            room: room(100 * MIB, 10_000),
        };
        for (what, now, then, still) in [
            ("the same", room(100 * MIB, 10_000), 1000, true),
            ("less", room(0, 0), 1000, true),
            ("hardly more", room(131 * MIB, 14_000), 1000, true),
            ("more bytes", room(132 * MIB, 0), 1000, false),
            ("more inodes", room(0, 14_096), 1000, false),
            ("later", room(100 * MIB, 10_000), 1000 + UNFIT_MS - 1, true),
            ("much later", room(0, 0), 1000 + UNFIT_MS, false),
        ] {
            assert_eq!(unfit.still(now, Time(then)), still, "{what}");
        }
    }

    #[test]
    fn a_policy_decides_by_what_is_stored() {
        use PullPolicy::{Always, IfNotPresent, Never};
        use Source::{Archive, Registry};
        for (policy, stored, expected) in [
            (Always, None, Way::Pull),
            (Always, Some(Registry), Way::Pull),
            (Always, Some(Archive), Way::Use),
            (IfNotPresent, None, Way::Pull),
            (IfNotPresent, Some(Registry), Way::Use),
            (IfNotPresent, Some(Archive), Way::Use),
            (Never, None, Way::Refuse),
            (Never, Some(Registry), Way::Use),
            (Never, Some(Archive), Way::Use),
        ] {
            let of = |usable| stored.map(|source| Stored { source, usable });
            assert_eq!(way(policy, of(true)), expected, "{policy:?} {stored:?}");
            let refused = way(policy, of(false));
            assert_eq!(refused, way(policy, None), "{policy:?} {stored:?}");
        }
    }

    #[test]
    fn a_percentage_is_rounded_down() {
        for (done, total, expected) in [
            (0, 0, 0),
            (0, 5, 0),
            (999, 1000, 99),
            (1000, 1000, 100),
            (7, 5, 100),
            (u64::MAX - 1, u64::MAX, 99),
        ] {
            assert_eq!(percent(done, total), expected, "{done} of {total}");
        }
    }

    #[test]
    fn a_burst_is_allowed_and_then_a_rate() {
        let rate = Rate { qps: 5, burst: 2 };
        let mut bucket = Bucket::default();
        for (ms, expected) in [
            (1000, true),
            (1000, true),
            (1000, false),
            (1199, false),
            (1200, true),
            (1200, false),
            (1400, true),
            (9000, true),
            (9000, true),
            (9000, false),
        ] {
            assert_eq!(bucket.take(rate, Time(ms)), expected, "at {ms}");
        }
        let unlimited = Rate { qps: 0, burst: 0 };
        assert!(bucket.take(unlimited, Time(9000)));
    }
}
