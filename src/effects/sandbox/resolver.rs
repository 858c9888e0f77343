//! A pod's `resolv.conf`, derived like the kubelet's from the node's, its `dnsPolicy` and its `dnsConfig`
//! (Kubernetes docs: DNS for Services and Pods).

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use crate::spec::{DnsPolicy, PodSpec, Reason};
use crate::sys::file;

/// Limits of glibc's resolver as the kubelet applies them.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH_PATH: usize = 253;

/// Names with fewer dots than this are tried below the search domains first.
const CLUSTER_OPTIONS: &str = "ndots:5";

/// A `resolv.conf`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolver {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

/// Whether the pod uses the name servers of the cluster, if there are any.
pub(super) fn wants_cluster_dns(spec: &PodSpec) -> bool {
    match spec.dns_policy {
        DnsPolicy::ClusterFirst => !spec.host_network,
        DnsPolicy::ClusterFirstWithHostNet => true,
        DnsPolicy::Default | DnsPolicy::None => false,
    }
}

/// The pod's resolver file, and what had to be left out, as reason and message of events. `node` is the text of the
/// node's file, `servers` are the cluster's.
pub(super) fn of_pod(
    spec: &PodSpec,
    node: &str,
    servers: &[IpAddr],
    cluster_domain: &str,
) -> (Resolver, Vec<(Reason, String)>) {
    let mut warnings = Vec::new();
    let cluster = wants_cluster_dns(spec);
    let mut conf = match spec.dns_policy {
        DnsPolicy::None => Resolver::default(),
        _ if cluster && !servers.is_empty() => {
            let own = [
                format!("{}.svc.{cluster_domain}", spec.key.namespace),
                format!("svc.{cluster_domain}"),
                cluster_domain.to_owned(),
            ];
            let mut searches = own.to_vec();
            extend_new(&mut searches, &Resolver::parse(node).searches);
            Resolver {
                nameservers: servers.iter().map(ToString::to_string).collect(),
                searches,
                options: vec![CLUSTER_OPTIONS.to_owned()],
            }
        }
        DnsPolicy::Default | DnsPolicy::ClusterFirst | DnsPolicy::ClusterFirstWithHostNet => {
            if cluster {
                warnings.push(missing(spec));
            }
            Resolver::parse(node)
        }
    };
    conf.add(spec);
    conf.limit(&mut warnings);
    (conf, warnings)
}

fn missing(spec: &PodSpec) -> (Reason, String) {
    let policy = match spec.dns_policy {
        DnsPolicy::ClusterFirstWithHostNet => "ClusterFirstWithHostNet",
        DnsPolicy::ClusterFirst | DnsPolicy::Default | DnsPolicy::None => "ClusterFirst",
    };
    let message = format!(
        "pod: \"{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"{policy}\" policy. \
         Falling back to \"Default\" policy.",
        spec.kubelet_name()
    );
    (Reason::MissingClusterDNS, message)
}

impl Resolver {
    /// Reads a `resolv.conf`: the last `search` line counts.
    fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.nameservers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    let trimmed = words.map(|word| word.trim_end_matches('.').to_owned());
                    conf.searches = trimmed.filter(|word| !word.is_empty()).collect();
                }
                Some("options") => conf.options = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        conf
    }

    /// Adds the pod's own `dnsConfig`.
    fn add(&mut self, spec: &PodSpec) {
        let config = &spec.dns_config;
        extend_new(&mut self.nameservers, &config.nameservers);
        extend_new(&mut self.searches, &config.searches);
        for (name, value) in &config.options {
            let option = value
                .as_ref()
                .map_or_else(|| name.clone(), |value| format!("{name}:{value}"));
            self.options
                .retain(|have| have.split(':').next() != Some(name));
            self.options.push(option);
        }
    }

    /// Leaves out what resolvers would not read anyway, and reports that.
    fn limit(&mut self, warnings: &mut Vec<(Reason, String)>) {
        if self.nameservers.len() > MAX_NAMESERVERS {
            self.nameservers.truncate(MAX_NAMESERVERS);
            warnings.push((
                Reason::DNSConfigForming,
                format!(
                    "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver \
                     line is: {}",
                    self.nameservers.join(" ")
                ),
            ));
        }
        let before = self.searches.len();
        self.searches.retain(|path| path.len() <= MAX_SEARCH_PATH);
        self.searches.truncate(MAX_SEARCHES);
        while self.searches.join(" ").len() > MAX_SEARCH_CHARS {
            self.searches.pop();
        }
        if self.searches.len() < before {
            warnings.push((
                Reason::DNSConfigForming,
                format!(
                    "Search Line limits were exceeded, some search paths have been omitted, the applied search line \
                     is: {}",
                    self.searches.join(" ")
                ),
            ));
        }
    }

    /// The file's text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            let _ = writeln!(text, "search {}", self.searches.join(" "));
        }
        for server in &self.nameservers {
            let _ = writeln!(text, "nameserver {server}");
        }
        if !self.options.is_empty() {
            let _ = writeln!(text, "options {}", self.options.join(" "));
        }
        text
    }
}

fn extend_new(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// The node's resolver file; an empty path stands for a resolver on the node itself.
pub(super) fn node_resolv_conf(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        return "nameserver 127.0.0.1\nsearch .\n".to_owned();
    }
    file::read_text(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    const NODE: &str = "nameserver 9.9.9.9\nsearch example.org svc.cluster.local\noptions rotate\n";

    fn pod(fields: &str) -> PodSpec {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\nspec:\n  containers: [{{name: c, \
             image: i}}]\n{fields}"
        );
        let context = ConvertContext::of("n");
        let read = documents(manifest.as_bytes(), "f", &context).expect("valid");
        read.pods.into_iter().next().expect("one pod")
    }

    #[test]
    fn the_last_search_line_wins_and_options_merge() {
        let conf = Resolver::parse(
            "search a.b\nnameserver 1.1.1.1\nsearch c. .\noptions ndots:2 rotate\n",
        );
        assert_eq!(
            conf.text(),
            "search c\nnameserver 1.1.1.1\noptions ndots:2 rotate\n"
        );
    }

    #[test]
    fn each_policy_gives_its_own_file() {
        let dns = [IpAddr::from([10, 77, 0, 1])];
        let cluster = "search shop.svc.cluster.local svc.cluster.local cluster.local example.org\nnameserver \
                       10.77.0.1\noptions ndots:5\n";
        let node = "search example.org svc.cluster.local\nnameserver 9.9.9.9\noptions rotate\n";
        let own = "  dnsConfig: {nameservers: [9.9.9.9, 1.1.1.1], searches: [x.y], options: [{name: ndots, value: \
                   \"1\"}, {name: edns0}]}\n";
        for (case, fields, servers, text, reasons) in [
            ("the default is the cluster's", String::new(), &dns[..], cluster.to_owned(), vec![]),
            ("on the node's network it is the node's", "  hostNetwork: true\n".into(), &dns[..], node.into(), vec![]),
            (
                "unless it is asked for",
                "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n".into(),
                &dns[..],
                cluster.into(),
                vec![],
            ),
            ("Default is the node's", "  dnsPolicy: Default\n".into(), &dns[..], node.into(), vec![]),
            (
                "without cluster DNS it falls back, and says so",
                String::new(),
                &[],
                node.into(),
                vec!["MissingClusterDNS"],
            ),
            (
                "None is only what the pod says",
                format!("  dnsPolicy: None\n{own}"),
                &dns[..],
                "search x.y\nnameserver 9.9.9.9\nnameserver 1.1.1.1\noptions ndots:1 edns0\n".into(),
                vec![],
            ),
            (
                "what the pod says is merged",
                own.to_owned(),
                &dns[..],
                "search shop.svc.cluster.local svc.cluster.local cluster.local example.org x.y\nnameserver \
                 10.77.0.1\nnameserver 9.9.9.9\nnameserver 1.1.1.1\noptions ndots:1 edns0\n"
                    .into(),
                vec![],
            ),
            (
                "a fourth name server is left out, and said so",
                "  dnsPolicy: Default\n  dnsConfig: {nameservers: [1.1.1.1, 2.2.2.2, 3.3.3.3]}\n".into(),
                &dns[..],
                "search example.org svc.cluster.local\nnameserver 9.9.9.9\nnameserver 1.1.1.1\nnameserver \
                 2.2.2.2\noptions rotate\n"
                    .into(),
                vec!["DNSConfigForming"],
            ),
        ] {
            let (conf, warnings) = of_pod(&pod(&fields), NODE, servers, "cluster.local");
            assert_eq!(conf.text(), text, "{case}");
            let found: Vec<String> = warnings.iter().map(|(reason, _)| reason.to_string()).collect();
            assert_eq!(found, reasons, "{case}");
        }
    }
}
