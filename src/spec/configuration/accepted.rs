//! Documents that manifests for a cluster bring along and that need nothing from this node: they are accepted and shown.

use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus, ServiceAccount};

use super::{Object, metadata};
use crate::spec::error::{Path, Report};
use crate::spec::names;

/// Checks a service account. There is no API server to log in to, so it has no tokens.
pub(super) fn service_account(
    mut account: ServiceAccount,
    path: &Path<'_>,
    report: &Report,
) -> Object {
    metadata(&mut account, path, report);
    account.secrets = None;
    Object::ServiceAccount(account)
}

/// Checks a namespace.
pub(super) fn namespace(mut namespace: Namespace, path: &Path<'_>, report: &Report) -> Object {
    let own = path.field("metadata");
    names::without_namespace(&mut namespace.metadata, &own, report);
    metadata(&mut namespace, path, report);
    namespace.metadata.namespace = None;
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    if let Some(problem) = names::dns_label(name).filter(|_| names::dns_subdomain(name).is_none()) {
        report.invalid(&own.field("name"), name, problem);
    }
    for level in namespace.metadata.labels.iter().flatten() {
        if level.0 == "pod-security.kubernetes.io/enforce" && level.1 != "privileged" {
            let what = "accepted, but namespaces have no level of their own: `coracle.podSecurity` in the settings is that of all pods";
            report.warn(&own.field("labels").field(level.0), what);
        }
    }
    let active = active(name);
    let labels = namespace.metadata.labels.get_or_insert_default();
    labels.extend(active.metadata.labels.into_iter().flatten());
    namespace.spec = None;
    namespace.status = active.status;
    Object::Namespace(namespace)
}

/// A namespace as an API server shows it.
pub(super) fn active(name: &str) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    let label = ("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    namespace.metadata.labels = Some([label].into());
    namespace.status = Some(NamespaceStatus {
        phase: Some("Active".to_owned()),
        ..NamespaceStatus::default()
    });
    namespace
}
