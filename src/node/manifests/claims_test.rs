//! Claims among the files of the manifest directory.

use std::fs;

use super::Manifests;
use super::tests::{Folder, errors, scan_all};
use crate::spec::{Object, binding};

/// A StatefulSet with a claim of this size for each pod.
fn stateful_set(size: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db}}\nspec:\n  serviceName: db\n  replicas: 2\n  \
         selector: {{matchLabels: {{app: db}}}}\n  template:\n    metadata: {{labels: {{app: db}}}}\n    spec: \
         {{containers: [{{name: c, image: i, volumeMounts: [{{name: data, mountPath: /data}}]}}]}}\n  \
         volumeClaimTemplates:\n  - metadata: {{name: data}}\n    spec: {{accessModes: [ReadWriteOnce], resources: \
         {{requests: {{storage: {size}}}}}}}\n"
    )
}

#[test]
fn a_claim_with_a_document_is_as_that_says_whichever_file_is_read_first() {
    for (set, claim) in [("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")] {
        let folder = Folder::new();
        fs::write(folder.0.join(set), stateful_set("1Gi")).unwrap();
        let document = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data-db-1}\nspec: {accessModes: \
                        [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}\n";
        fs::write(folder.0.join(claim), document).unwrap();
        let mut manifests = folder.manifests();
        let sizes = |manifests: &Manifests| {
            let shown = manifests.documents().shown;
            let of = |object: &Object| match object {
                Object::Claim(claim) => {
                    let name = claim.metadata.name.clone().unwrap();
                    Some((name, binding::storage(claim)?.0.clone()))
                }
                _ => None,
            };
            let mut sizes: Vec<_> = shown.iter().filter_map(|(object, _)| of(object)).collect();
            sizes.sort();
            sizes
        };
        let is = |name: &str, size: &str| (name.to_owned(), size.to_owned());
        scan_all(&mut manifests);
        assert_eq!(errors(&manifests), [""; 0], "{set}");
        let written = [is("data-db-0", "1Gi"), is("data-db-1", "5Gi")];
        assert_eq!(sizes(&manifests), written, "{set}");
        // Without its document the claim is the template's again.
        fs::remove_file(folder.0.join(claim)).unwrap();
        scan_all(&mut manifests);
        let template = [is("data-db-0", "1Gi"), is("data-db-1", "1Gi")];
        assert_eq!(sizes(&manifests), template, "{set}");
    }
}
