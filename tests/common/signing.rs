//! Signatures made by `openssl`, in the form of cosign, and pushed into a registry as cosign pushes them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A key of `openssl`.
pub struct Signer {
    dir: PathBuf,
}

/// A signed document, and its signature in base64.
#[derive(Debug, Clone)]
pub struct Signed {
    pub payload: String,
    pub signature: String,
}

impl Signer {
    /// Makes `NAME.key` and `NAME.pub` in a folder.
    pub fn new(dir: &Path, name: &str) -> Self {
        let signer = Self {
            dir: dir.join(format!("{name}-keys")),
        };
        std::fs::create_dir_all(&signer.dir).unwrap();
        signer.openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key");
        signer.openssl("pkey -in key -pubout -out pub");
        signer
    }

    fn openssl(&self, args: &str) -> Vec<u8> {
        let output = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(&self.dir)
            .output()
            .expect("openssl: apt-get install openssl");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {args}: {said}");
        output.stdout
    }

    /// The file of the public key.
    pub fn public(&self) -> PathBuf {
        self.dir.join("pub")
    }

    /// Signs that `reference` has a digest.
    pub fn sign(&self, reference: &str, digest: &str) -> Signed {
        let payload = json!({
            "critical": {
                "identity": { "docker-reference": reference },
                "image": { "docker-manifest-digest": digest },
                "type": "cosign container image signature",
            },
            "optional": { "creator": "a test" },
        });
        self.sign_text(&payload.to_string())
    }

    /// Signs any text.
    pub fn sign_text(&self, text: &str) -> Signed {
        std::fs::write(self.dir.join("payload"), text).unwrap();
        self.openssl("dgst -sha256 -sign key -out signature payload");
        let signature = self.openssl("base64 -A -in signature");
        Signed {
            payload: text.to_owned(),
            signature: String::from_utf8(signature).unwrap().trim().to_owned(),
        }
    }

    /// The requirement of a policy that this key has signed.
    pub fn requirement(&self, identity: &Value) -> Value {
        json!({ "type": "sigstoreSigned", "keyPath": self.public(), "signedIdentity": identity })
    }

    /// The same for cosign's signatures, which are for repositories.
    pub fn repository(&self) -> Value {
        self.requirement(&json!({ "type": "matchRepository" }))
    }

    /// A line of `cosign download signature`.
    pub fn line(&self, signed: &Signed) -> String {
        std::fs::write(self.dir.join("line"), &signed.payload).unwrap();
        let payload = self.openssl("base64 -A -in line");
        let payload = String::from_utf8(payload).unwrap();
        let line =
            json!({ "Base64Signature": signed.signature, "Payload": payload.trim(), "Cert": null });
        format!("{line}\n")
    }
}

pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// A manifest of signatures as cosign makes it, with the blobs that it refers to.
pub fn manifest(signed: &[Signed], subject: Option<&str>) -> (Value, Vec<Vec<u8>>) {
    let config = b"{}".to_vec();
    let layers: Vec<Value> = signed
        .iter()
        .map(|signed| {
            json!({
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
                "digest": digest(signed.payload.as_bytes()),
                "size": signed.payload.len(),
                "annotations": { "dev.cosignproject.cosign/signature": signed.signature },
            })
        })
        .collect();
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config),
            "size": config.len(),
        },
        "layers": layers,
    });
    if let Some(subject) = subject {
        manifest["subject"] = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": subject, "size": 1,
        });
    }
    let blobs = signed
        .iter()
        .map(|signed| signed.payload.clone().into_bytes());
    (manifest, blobs.chain([config]).collect())
}

/// A repository of a registry by plain HTTP. It is used inside the registry's namespace.
pub struct Repository {
    pub registry: SocketAddr,
    pub name: String,
}

impl Repository {
    /// One request; status, headers in lower case, body.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.registry).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            self.registry,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head, answer[end + 4..].to_vec())
    }

    /// The digest that a tag means.
    pub fn digest_of(&self, tag: &str) -> String {
        let accept = "Accept: application/vnd.oci.image.index.v1+json\r\n\
                      Accept: application/vnd.oci.image.manifest.v1+json\r\n\
                      Accept: application/vnd.docker.distribution.manifest.v2+json\r\n";
        let path = format!("/v2/{}/manifests/{tag}", self.name);
        let (status, head, _) = self.ask("HEAD", &path, accept, b"");
        assert_eq!(status, 200, "{head}");
        let mut lines = head.lines();
        let found = lines.find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("Docker-Content-Digest")
                .then(|| value.to_owned())
        });
        found.unwrap_or_else(|| panic!("{head}"))
    }

    pub fn push_blob(&self, bytes: &[u8]) {
        let path = format!("/v2/{}/blobs/uploads/", self.name);
        let (status, head, _) = self.ask("POST", &path, "", b"");
        assert_eq!(status, 202, "{head}");
        let mut lines = head.lines();
        let location = lines.find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("Location").then_some(value)
        });
        let location = location.unwrap_or_else(|| panic!("{head}"));
        let host = format!("http://{}", self.registry);
        let path = location.strip_prefix(&host).unwrap_or(location);
        let path = format!("{path}&digest={}", digest(bytes).replace(':', "%3A"));
        let kind = "Content-Type: application/octet-stream\r\n";
        let (status, head, _) = self.ask("PUT", &path, kind, bytes);
        assert_eq!(status, 201, "{head}");
    }

    /// Pushes a manifest or index, and returns its digest.
    pub fn push_manifest(&self, reference: &str, manifest: &Value) -> String {
        let text = manifest.to_string();
        let kind = manifest["mediaType"].as_str().unwrap();
        let kind = format!("Content-Type: {kind}\r\n");
        let path = format!("/v2/{}/manifests/{reference}", self.name);
        let (status, head, body) = self.ask("PUT", &path, &kind, text.as_bytes());
        let body = String::from_utf8_lossy(&body);
        assert_eq!(status, 201, "{head} {body}");
        digest(text.as_bytes())
    }

    /// Pushes signatures of a digest as `cosign sign` does.
    pub fn push_signatures(&self, of: &str, signed: &[Signed]) {
        let (manifest, blobs) = manifest(signed, None);
        blobs.iter().for_each(|blob| self.push_blob(blob));
        self.push_manifest(&format!("{}.sig", of.replace(':', "-")), &manifest);
    }

    /// Pushes them as `cosign sign --registry-referrers-mode=oci-1-1` does, to a registry that has no list of referrers;
    /// returns the list.
    pub fn push_referrer(&self, of: &str, signed: &[Signed]) -> Value {
        let (manifest, blobs) = manifest(signed, Some(of));
        blobs.iter().for_each(|blob| self.push_blob(blob));
        let text = manifest.to_string();
        let pushed = self.push_manifest(&digest(text.as_bytes()), &manifest);
        let list = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": pushed,
                "size": text.len(),
                "artifactType": "application/vnd.dev.cosign.artifact.sig.v1+json",
            }],
        });
        self.push_manifest(&of.replace(':', "-"), &list);
        list
    }
}
