//! What a container runs with, for `coracle describe pod`: user, groups, capabilities, seccomp.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerStatus, PodSecurityContext, SeccompProfile, SecurityContext,
};

use super::describe::Page;

/// Adds the lines of one container. Its own security context goes before the pod's.
pub(super) fn lines(
    page: &mut Page,
    pod: Option<&PodSecurityContext>,
    container: &Container,
    status: Option<&ContainerStatus>,
) {
    let (pod, own) = (pod.cloned(), container.security_context.clone());
    let (pod, own) = (pod.unwrap_or_default(), own.unwrap_or_default());
    let (user, groups) = ids(&pod, &own, status);
    page.line(4, "User", user);
    page.line(4, "Groups", groups);
    let privileged = own.privileged == Some(true);
    let capabilities = match privileged {
        true => "all (privileged)".to_owned(),
        false => capabilities(own.capabilities.as_ref()),
    };
    page.line(4, "Capabilities", capabilities);
    let profile = own.seccomp_profile.or(pod.seccomp_profile);
    let seccomp = match privileged {
        true => "Unconfined (privileged)".to_owned(),
        false => seccomp(profile.as_ref()),
    };
    page.line(4, "Seccomp", seccomp);
}

/// User and groups: of the container's first process, or else what the manifest says.
fn ids(
    pod: &PodSecurityContext,
    own: &SecurityContext,
    status: Option<&ContainerStatus>,
) -> (String, String) {
    let running = status.and_then(|status| status.user.as_ref()?.linux.as_ref());
    let (user, mut groups) = match running {
        Some(user) => (Some(user.uid), vec![user.gid]),
        None => {
            let group = own.run_as_group.or(pod.run_as_group);
            (own.run_as_user.or(pod.run_as_user), Vec::from_iter(group))
        }
    };
    let more = match running {
        Some(user) => &user.supplemental_groups,
        None => &pod.supplemental_groups,
    };
    for group in more.iter().flatten() {
        if !groups.contains(group) {
            groups.push(*group);
        }
    }
    let of_image = || "as the image says".to_owned();
    let groups: Vec<String> = groups.iter().map(i64::to_string).collect();
    (
        user.map_or_else(of_image, |user| user.to_string()),
        match groups.is_empty() {
            true => of_image(),
            false => groups.join(", "),
        },
    )
}

/// `default, without ALL, with NET_BIND_SERVICE`: what is added counts last.
fn capabilities(chosen: Option<&Capabilities>) -> String {
    let mut text = "default".to_owned();
    let chosen = chosen.cloned().unwrap_or_default();
    for (word, list) in [("without", chosen.drop), ("with", chosen.add)] {
        if let Some(list) = list.filter(|list| !list.is_empty()) {
            text += &format!(", {word} {}", list.join(" "));
        }
    }
    text
}

fn seccomp(profile: Option<&SeccompProfile>) -> String {
    match profile {
        None => "RuntimeDefault".to_owned(),
        Some(profile) => match &profile.localhost_profile {
            Some(file) => format!("{} {file}", profile.type_),
            None => profile.type_.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_container_is_shown_with_what_it_runs_with() {
        let user = json!({ "linux": { "uid": 5, "gid": 6, "supplementalGroups": [6, 7] } });
        for (sentence, pod, own, user, expected) in [
            (
                "nothing is chosen",
                json!({}),
                json!({}),
                Value::Null,
                [
                    "as the image says",
                    "as the image says",
                    "default",
                    "RuntimeDefault",
                ],
            ),
            (
                "the pod chooses",
                json!({ "runAsUser": 1, "runAsGroup": 2, "supplementalGroups": [3],
                        "seccompProfile": { "type": "Unconfined" } }),
                json!({ "capabilities": { "add": ["CHOWN"], "drop": ["ALL"] } }),
                Value::Null,
                [
                    "1",
                    "2, 3",
                    "default, without ALL, with CHOWN",
                    "Unconfined",
                ],
            ),
            (
                "the container chooses otherwise, and runs",
                json!({ "runAsUser": 1, "seccompProfile": { "type": "Unconfined" } }),
                json!({ "runAsUser": 5,
                        "seccompProfile": { "type": "Localhost", "localhostProfile": "a.json" } }),
                user,
                ["5", "6, 7", "default", "Localhost a.json"],
            ),
            (
                "it is privileged",
                json!({}),
                json!({ "privileged": true, "runAsUser": 0 }),
                Value::Null,
                [
                    "0",
                    "as the image says",
                    "all (privileged)",
                    "Unconfined (privileged)",
                ],
            ),
        ] {
            let pod = PodSecurityContext::deserialize(&pod).unwrap();
            let container = json!({ "name": "c", "securityContext": own });
            let container = Container::deserialize(&container).unwrap();
            let status = json!({ "name": "c", "image": "i", "imageID": "1", "ready": true, "restartCount": 0,
                                 "user": user });
            let status = ContainerStatus::deserialize(&status).unwrap();
            let mut shown = Page(String::new());
            lines(&mut shown, Some(&pod), &container, Some(&status));
            let [user, groups, capabilities, seccomp] = expected;
            assert_eq!(
                shown.0,
                format!(
                    "    User:             {user}\n    Groups:           {groups}\n    \
                     Capabilities:     {capabilities}\n    Seccomp:          {seccomp}\n"
                ),
                "{sentence}"
            );
        }
    }
}
