//! Lifecycle hooks and stop signals (Kubernetes docs: Container Lifecycle Hooks, Termination of Pods).

use serde::{Deserialize, Serialize};

use super::probe::HttpGet;

/// A container's `lifecycle`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lifecycle {
    /// Runs once the process runs; the container counts as running after it.
    pub post_start: Option<Hook>,
    /// Runs before the stop signal, within the grace period.
    pub pre_stop: Option<Hook>,
    /// `stopSignal`; `None`: the image's, or SIGTERM.
    pub stop_signal: Option<StopSignalName>,
}

/// Action of a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// Runs a program in the container, as written.
    Exec(Vec<String>),
    /// Sends an HTTP GET; any answer will do.
    HttpGet(HttpGet),
    /// Accepted for compatibility, and fails.
    TcpSocket,
    /// Waits.
    Sleep {
        /// Duration in milliseconds.
        ms: u64,
    },
}

/// Kind of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HookKind {
    /// `postStart`.
    PostStart,
    /// `preStop`.
    PreStop,
}

impl Lifecycle {
    /// Returns the hook of that kind.
    pub fn hook(&self, kind: HookKind) -> Option<&Hook> {
        match kind {
            HookKind::PostStart => self.post_start.as_ref(),
            HookKind::PreStop => self.pre_stop.as_ref(),
        }
    }
}

/// A signal named by `stopSignal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopSignalName {
    /// Name, such as `SIGUSR1`.
    pub name: String,
    /// The kernel's number.
    pub number: i32,
}

/// Signals with names of their own, and their numbers on all supported architectures.
const SIGNALS: [(&str, i32); 34] = [
    ("SIGABRT", 6),
    ("SIGALRM", 14),
    ("SIGBUS", 7),
    ("SIGCHLD", 17),
    ("SIGCLD", 17),
    ("SIGCONT", 18),
    ("SIGFPE", 8),
    ("SIGHUP", 1),
    ("SIGILL", 4),
    ("SIGINT", 2),
    ("SIGIO", 29),
    ("SIGIOT", 6),
    ("SIGKILL", 9),
    ("SIGPIPE", 13),
    ("SIGPOLL", 29),
    ("SIGPROF", 27),
    ("SIGPWR", 30),
    ("SIGQUIT", 3),
    ("SIGSEGV", 11),
    ("SIGSTKFLT", 16),
    ("SIGSTOP", 19),
    ("SIGSYS", 31),
    ("SIGTERM", 15),
    ("SIGTRAP", 5),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGVTALRM", 26),
    ("SIGWINCH", 28),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
];

/// The first and last real-time signal for programs: the C library reserves two.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

impl StopSignalName {
    /// Parses a name that Kubernetes allows on Linux: `SIGABRT` … `SIGXFSZ`, `SIGRTMIN`, `SIGRTMIN+1` … `+15`,
    /// `SIGRTMAX-14` … `-1`, `SIGRTMAX`.
    pub fn parse(name: &str) -> Option<Self> {
        let plain = SIGNALS.iter().find(|(known, _)| *known == name);
        let number = plain.map(|(_, number)| *number).or_else(|| {
            let (base, sign, most) = match name.strip_prefix("SIGRTMIN") {
                Some(_) => (RTMIN, '+', 15),
                None => (RTMAX, '-', 14),
            };
            let rest = name.strip_prefix("SIGRTMIN");
            let rest = rest.or_else(|| name.strip_prefix("SIGRTMAX"))?;
            if rest.is_empty() {
                return Some(base);
            }
            let digits = rest.strip_prefix(sign)?;
            let steps: i32 = digits.parse().ok()?;
            let fits = (1..=most).contains(&steps) && digits == steps.to_string();
            let number = if sign == '+' {
                base + steps
            } else {
                base - steps
            };
            fits.then_some(number)
        })?;
        Some(Self {
            name: name.to_owned(),
            number,
        })
    }

    /// Returns the name of a signal, if it has one; of two names, the first in alphabetical order.
    pub fn of(number: i32) -> Option<Self> {
        let plain = SIGNALS.iter().find(|(_, known)| *known == number);
        let name = match (plain, number - RTMIN, RTMAX - number) {
            (Some((name, _)), ..) => (*name).to_owned(),
            (None, 0, _) => "SIGRTMIN".to_owned(),
            (None, steps @ 1..=15, _) => format!("SIGRTMIN+{steps}"),
            (None, _, 0) => "SIGRTMAX".to_owned(),
            (None, _, steps @ 1..=14) => format!("SIGRTMAX-{steps}"),
            (None, ..) => return None,
        };
        Some(Self { name, number })
    }

    /// Returns all names, for error messages.
    pub(super) fn all() -> Vec<String> {
        let mut names: Vec<String> = SIGNALS.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.push("SIGRTMIN".to_owned());
        names.extend((1..=15).map(|n| format!("SIGRTMIN+{n}")));
        names.extend((1..=14).rev().map(|n| format!("SIGRTMAX-{n}")));
        names.push("SIGRTMAX".to_owned());
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_kubernetes_names_only() {
        for (name, number) in [
            ("SIGTERM", Some(15)),
            ("SIGUSR1", Some(10)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+15", Some(49)),
            ("SIGRTMAX-14", Some(50)),
            ("SIGRTMAX", Some(64)),
            ("SIGRTMIN+16", None),
            ("SIGRTMAX-15", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMIN+01", None),
            ("SIGRTMIN+0", None),
            ("TERM", None),
            ("15", None),
            ("sigterm", None),
            ("", None),
        ] {
            let found = StopSignalName::parse(name).map(|signal| signal.number);
            assert_eq!(found, number, "{name}");
        }
        for name in StopSignalName::all() {
            assert!(StopSignalName::parse(&name).is_some(), "{name}");
        }
    }

    #[test]
    fn every_number_of_a_signal_has_a_name_that_means_it() {
        for number in -1..70 {
            let found = StopSignalName::of(number);
            let is_one = (1..=31).contains(&number) || (34..=64).contains(&number);
            assert_eq!(found.is_some(), is_one, "{number}");
            if let Some(signal) = found {
                assert_eq!(StopSignalName::parse(&signal.name), Some(signal));
            }
        }
        for (number, name) in [(15, "SIGTERM"), (34, "SIGRTMIN"), (63, "SIGRTMAX-1")] {
            assert_eq!(StopSignalName::of(number).unwrap().name, name);
        }
    }
}
