//! A profile as a program for the kernel. libseccomp needs 4 ms for each architecture and compares a call with every
//! rule; this takes a fraction of one, and finds the call by halves. So a filter can know all architectures whose
//! programs the node runs. Only for profiles of this crate: a call has either one rule without condition, or rules on
//! one argument.

use std::collections::BTreeMap;

use libcontainer::oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompOperator as Operator, LinuxSyscall,
};

use super::EPERM;
use crate::sys::seccomp::Architecture;

/// `struct seccomp_data`: the call's number, its architecture, the first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `ld [k]`, `jmp k`, and the jumps if the accumulator equals k, is at least k, has a bit of k; `ret k`.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// `SECCOMP_RET_…`. Before Linux 4.14 the first one kills the thread only.
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// `struct sock_filter`: operation, jumps if true and if false, operand.
type Step = (u16, u8, u8, u32);

/// The value that a range begins with, and what to do with its members.
type Range = (u32, Vec<Step>);

/// The program, in the kernel's form. Calls of an architecture that this node does not run kill the process.
pub fn filter(profile: &LinuxSeccomp) -> Vec<u8> {
    let mut steps = vec![(LOAD, 0, 0, ARCHITECTURE)];
    for architecture in Architecture::of_this_machine() {
        let mut body = vec![(LOAD, 0, 0, NUMBER)];
        body.extend(tree(&calls(profile, architecture)));
        steps.push((IF_EQUAL, 1, 0, architecture.token));
        steps.push((JUMP, 0, 0, distance(&body)));
        steps.append(&mut body);
    }
    steps.extend(answer(KILL_PROCESS));
    let bytes = steps.into_iter().flat_map(|(operation, yes, no, operand)| {
        let [o1, o2] = operation.to_ne_bytes();
        let [k1, k2, k3, k4] = operand.to_ne_bytes();
        [o1, o2, yes, no, k1, k2, k3, k4]
    });
    bytes.collect()
}

/// What to do with each call's number.
fn calls(profile: &LinuxSeccomp, architecture: &Architecture) -> Vec<Range> {
    let mut by_number: BTreeMap<u32, Vec<&LinuxSyscall>> = BTreeMap::new();
    for rule in profile.syscalls().iter().flatten() {
        for name in rule.names() {
            for number in architecture.sets.iter().filter_map(|set| set.number(name)) {
                by_number.entry(number).or_default().push(rule);
            }
        }
    }
    let other = answer(outcome(profile, &[], 0));
    let mut ranges = vec![(0, other.clone())];
    for (number, rules) in by_number {
        add(&mut ranges, number, decision(profile, &rules, architecture));
        // No architecture has the last number.
        ranges.push((number.saturating_add(1), other.clone()));
    }
    merge(ranges)
}

/// Begins a range; one that began with the same value was empty.
fn add(ranges: &mut Vec<Range>, start: u32, steps: Vec<Step>) {
    ranges.pop_if(|last| last.0 == start);
    ranges.push((start, steps));
}

fn merge(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.dedup_by(|next, kept| next.1 == kept.1);
    ranges
}

/// The steps for a call with these rules.
fn decision(
    profile: &LinuxSeccomp,
    rules: &[&LinuxSyscall],
    architecture: &Architecture,
) -> Vec<Step> {
    let tests = || {
        rules
            .iter()
            .filter_map(|rule| rule.args().as_ref()?.first())
    };
    let Some(first) = tests().next() else {
        return answer(outcome(profile, rules, 0));
    };
    let low = ARGUMENTS + 8 * u32::try_from(first.index()).unwrap_or(0);
    let of = |value: u64| answer(outcome(profile, rules, value));
    let mut steps = Vec::new();
    if first.op() == Operator::ScmpCmpMaskedEq {
        // All bits that count are in the lower half, and each alone decides the same.
        let mask = tests().fold(0, |mask, test| mask | test.value_two().unwrap_or(0));
        steps.push((LOAD, 0, 0, low));
        steps.push((IF_BITS, 0, 1, u32::try_from(mask).unwrap_or(u32::MAX)));
        steps.extend(of(mask));
        steps.extend(of(0));
        return steps;
    }
    if architecture.is_wide {
        // All values compared with are in the lower half.
        steps.extend([(LOAD, 0, 0, low + 4), (IF_EQUAL, 1, 0, 0)]);
        steps.extend(of(1 << 32));
    }
    steps.push((LOAD, 0, 0, low));
    let mut starts = vec![0];
    starts.extend(tests().flat_map(|test| [test.value(), test.value() + 1]));
    starts.sort_unstable();
    starts.dedup();
    let starts = starts
        .into_iter()
        .filter_map(|start| Some((u32::try_from(start).ok()?, of(start))));
    steps.extend(tree(&merge(starts.collect())));
    steps
}

/// The kernel's word for what the first rule that fits decides.
fn outcome(profile: &LinuxSeccomp, rules: &[&LinuxSyscall], value: u64) -> u32 {
    let fits = |rule: &&&LinuxSyscall| {
        let mut tests = rule.args().iter().flatten();
        tests.all(|test| match test.op() {
            Operator::ScmpCmpEq => value == test.value(),
            Operator::ScmpCmpNe => value != test.value(),
            Operator::ScmpCmpLt => value < test.value(),
            Operator::ScmpCmpLe => value <= test.value(),
            Operator::ScmpCmpGe => value >= test.value(),
            Operator::ScmpCmpGt => value > test.value(),
            Operator::ScmpCmpMaskedEq => value & test.value_two().unwrap_or(0) == test.value(),
        })
    };
    match rules.iter().find(fits) {
        Some(rule) if rule.action() == Action::ScmpActAllow => ALLOW,
        Some(rule) => ERRNO | rule.errno_ret().unwrap_or(EPERM),
        None => ERRNO | profile.default_errno_ret().unwrap_or(EPERM),
    }
}

fn answer(word: u32) -> Vec<Step> {
    vec![(RETURN, 0, 0, word)]
}

/// Finds the accumulator's range by halves. The first range begins with 0; every range's steps end in an answer.
fn tree(ranges: &[Range]) -> Vec<Step> {
    let (low, high) = match ranges {
        [] => return Vec::new(),
        [(_, steps)] => return steps.clone(),
        _ => ranges.split_at(ranges.len() / 2),
    };
    let (start, low, high) = (high[0].0, tree(low), tree(high));
    let mut steps = match u8::try_from(low.len()) {
        Ok(short) => vec![(IF_AT_LEAST, short, 0, start)],
        Err(_) => vec![(IF_AT_LEAST, 0, 1, start), (JUMP, 0, 0, distance(&low))],
    };
    steps.extend(low);
    steps.extend(high);
    steps
}

fn distance(steps: &[Step]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{ALWAYS, NEVER, REFUSED_FAMILIES, runtime_default};
    use super::*;

    const REFUSED: u32 = ERRNO | 1;
    const UNKNOWN: u32 = ERRNO | 38;

    /// What the kernel does with a program of these steps.
    fn run(program: &[u8], token: u32, number: u32, argument: u64) -> u32 {
        let words = [
            number,
            token,
            0,
            0,
            u32::try_from(argument & 0xffff_ffff).unwrap(),
            u32::try_from(argument >> 32).unwrap(),
        ];
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let step = &program[8 * at..8 * at + 8];
            let operation = u16::from_ne_bytes([step[0], step[1]]);
            let operand = u32::from_ne_bytes(step[4..].try_into().unwrap());
            let jump = |holds| usize::from(if holds { step[2] } else { step[3] });
            at += 1;
            match operation {
                LOAD => accumulator = words[usize::try_from(operand).unwrap() / 4],
                JUMP => at += usize::try_from(operand).unwrap(),
                IF_EQUAL => at += jump(accumulator == operand),
                IF_AT_LEAST => at += jump(accumulator >= operand),
                IF_BITS => at += jump(accumulator & operand != 0),
                RETURN => return operand,
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn program(capabilities: &[&str]) -> Vec<u8> {
        let set: BTreeSet<String> = capabilities.iter().map(|c| (*c).to_owned()).collect();
        filter(&runtime_default(&set))
    }

    /// By the names that libseccomp has for numbers, not by the numbers of names that made the program.
    #[test]
    fn every_number_of_every_architecture_is_answered_as_its_name_says() {
        let program = program(&[]);
        assert!(program.len() / 8 < 4096, "{} steps", program.len() / 8);
        let special = ["clone", "socket", "personality"];
        let always: BTreeSet<&str> = ALWAYS.split_whitespace().collect();
        let never: BTreeSet<&str> = NEVER.split_whitespace().collect();
        for architecture in Architecture::of_this_machine() {
            for set in architecture.sets {
                let (mut allowed, mut refused) = (0, 0);
                for number in set.first..set.first + 700 {
                    let name = set.name(number).unwrap_or_default();
                    let found = run(&program, architecture.token, number, 0);
                    match name.as_str() {
                        name if special.contains(&name) => continue,
                        name if always.contains(name) => assert_eq!(found, ALLOW, "{name}"),
                        name if never.contains(name) => assert_eq!(found, REFUSED, "{name}"),
                        // With a capability, on this architecture alone, or unknown.
                        name => assert!(
                            [REFUSED, UNKNOWN].contains(&found)
                                || super::super::BY_ARCHITECTURE
                                    .iter()
                                    .any(|(_, calls)| calls.split_whitespace().any(|c| c == name)),
                            "{name} ({number})"
                        ),
                    }
                    allowed += u32::from(found == ALLOW);
                    refused += u32::from(found == REFUSED);
                }
                assert!(allowed > 250 && refused > 30, "{allowed} {refused}");
            }
            for number in [700, 0x3fff_ffff, 0x4000_1000, 0x8000_0000, u32::MAX] {
                assert_eq!(run(&program, architecture.token, number, 0), UNKNOWN);
            }
        }
        assert_eq!(run(&program, 0x1234, 0, 0), KILL_PROCESS);
    }

    #[test]
    fn arguments_decide_alike_on_every_architecture() {
        let program = program(&[]);
        for architecture in Architecture::of_this_machine() {
            for set in architecture.sets {
                let of = |name: &str, value: u64| {
                    let number = set.number(name).expect("known");
                    run(&program, architecture.token, number, value)
                };
                for family in 0..60 {
                    let fine = family <= 45 && !REFUSED_FAMILIES.contains(&family);
                    let expected = if fine { ALLOW } else { REFUSED };
                    assert_eq!(of("socket", family), expected, "family {family}");
                }
                // An argument of 32 bits has no upper half.
                if architecture.is_wide {
                    assert_eq!(of("socket", 1 << 32 | 1), REFUSED);
                    assert_eq!(of("personality", 1 << 32), UNKNOWN);
                }
                for (value, expected) in
                    [(0, ALLOW), (8, ALLOW), (9, UNKNOWN), (0xffff_ffff, ALLOW)]
                {
                    assert_eq!(of("personality", value), expected, "personality {value}");
                }
                for bit in 0..32 {
                    let expected = match 0x7e02_0000 & 1u64 << bit {
                        0 => ALLOW,
                        _ => REFUSED,
                    };
                    assert_eq!(of("clone", 1 << bit), expected, "bit {bit}");
                    assert_eq!(of("clone", 1 << bit | 0x11), expected, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn capabilities_open_calls_on_every_architecture() {
        let (plain, administrator) = (program(&[]), program(&["CAP_SYS_ADMIN"]));
        for architecture in Architecture::of_this_machine() {
            for set in architecture.sets {
                let mount = set.number("mount").expect("known");
                let of = |program: &[u8]| run(program, architecture.token, mount, 0);
                assert_eq!((of(&plain), of(&administrator)), (REFUSED, ALLOW));
                let clone = set.number("clone").expect("known");
                let found = run(&administrator, architecture.token, clone, 0x7e02_0000);
                assert_eq!(found, ALLOW);
            }
        }
    }

    #[test]
    fn socketcall_is_refused_as_it_hides_the_family() {
        let program = program(&[]);
        for architecture in Architecture::of_this_machine() {
            for number in architecture
                .sets
                .iter()
                .filter_map(|set| set.number("socketcall"))
            {
                assert_eq!(run(&program, architecture.token, number, 3), REFUSED);
            }
        }
    }
}
