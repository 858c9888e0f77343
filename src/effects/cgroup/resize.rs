//! In-place resize of cpu and memory. Memory first, then cpu, each in an order in which no container ever has more
//! than its pod (KEP-1287). Every value is read back; a repetition changes nothing.

use std::io;

use super::limits::Resource;
use super::values::{bound, same};
use super::{CgroupError, Cgroups, Limits};
use crate::spec::{ContainerResources, PodResources, PodSpec};

/// Why a pod could not be resized, or not entirely.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// More is in use than the new limit; nothing was changed.
    #[error("cannot decrease memory limits: {0}")]
    InUse(String),
    /// A file could not be written or read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel stored a different value.
    #[error("`{value}` was written to `{file}` of cgroup `{path}`, but its value is `{found}`")]
    Kept {
        /// The cgroup.
        path: String,
        /// The file.
        file: &'static str,
        /// The value written.
        value: String,
        /// The value read back.
        found: String,
    },
}

/// One cgroup with its new values.
struct Target {
    /// The container's name in errors; `None` for the pod.
    container: Option<String>,
    path: String,
    limits: Limits,
}

impl Cgroups {
    /// Blocking. Applies new resources to the pod and these containers. A container without a cgroup gets them when
    /// it starts again.
    pub fn resize(
        &self,
        spec: &PodSpec,
        pod: PodResources,
        containers: &[(String, ContainerResources)],
    ) -> Result<(), ResizeError> {
        let path = self.pod_path(spec.qos, &spec.uid);
        let limits = Limits::pod(spec, pod, self.settings);
        let containers = containers.iter().map(|(name, resources)| Target {
            container: Some(name.clone()),
            path: self.container_path(&path, name),
            limits: Limits::container(spec, name, *resources, pod, self.settings),
        });
        let there = |target: &Target| self.hierarchies.exists(&target.path);
        let containers: Vec<Target> = containers.filter(there).collect();
        let pod = Target {
            container: None,
            path,
            limits,
        };
        self.check_usage(&pod, &containers)?;
        self.set(Resource::Memory, &pod, &containers)?;
        self.set(Resource::Cpu, &pod, &containers)
    }

    /// Sets one resource everywhere: the pod first for an increase, the containers first for a decrease.
    fn set(
        &self,
        resource: Resource,
        pod: &Target,
        containers: &[Target],
    ) -> Result<(), ResizeError> {
        let (limit, weight) = (self.is_raised(pod, resource)?, self.weight_raised(pod)?);
        let weigh = resource == Resource::Cpu;
        if limit {
            self.write_back(pod, resource)?;
        }
        if weigh && weight {
            self.write_back(pod, Resource::Weight)?;
        }
        for raised in [false, true] {
            for target in containers {
                if self.is_raised(target, resource)? == raised {
                    if weigh {
                        self.write_back(target, Resource::Weight)?;
                    }
                    self.write_back(target, resource)?;
                }
            }
        }
        if weigh && !weight {
            self.write_back(pod, Resource::Weight)?;
        }
        if !limit {
            self.write_back(pod, resource)?;
        }
        Ok(())
    }

    fn check_usage(&self, pod: &Target, containers: &[Target]) -> Result<(), ResizeError> {
        let mut problems = Vec::new();
        for target in std::iter::once(pod).chain(containers) {
            let Some(limit) = target.limits.memory() else {
                continue;
            };
            let now = self.limit(target, Resource::Memory)?;
            if now.is_some_and(|now| now <= limit) || !self.hierarchies.has_processes(&target.path)
            {
                continue;
            }
            let usage = self.read(target, self.mode().usage())?;
            let usage: u64 = usage.trim().parse().unwrap_or(0);
            if usage >= limit {
                let whose = match &target.container {
                    None => "pod".to_owned(),
                    Some(name) => format!("container {name:?}"),
                };
                problems.push(format!(
                    "attempting to set {whose} memory limit ({limit}) below current usage ({usage})"
                ));
            }
        }
        match &problems[..] {
            [] => Ok(()),
            [one] => Err(ResizeError::InUse(one.clone())),
            several => Err(ResizeError::InUse(format!("[{}]", several.join(", ")))),
        }
    }

    /// Whether the limit increases.
    fn is_raised(&self, target: &Target, resource: Resource) -> Result<bool, ResizeError> {
        let wanted = target.limits.limit(resource);
        let now = self.limit(target, resource)?;
        Ok(now.is_some_and(|now| wanted.is_none_or(|wanted| wanted > now)))
    }

    fn weight_raised(&self, target: &Target) -> Result<bool, ResizeError> {
        let mut files = target.limits.files_of(self.mode(), Resource::Weight);
        let Some((file, wanted)) = files.pop() else {
            return Ok(false);
        };
        let now = self.read(target, file)?;
        let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
        Ok(number(&wanted) > number(&now))
    }

    /// The current limit; `None` if there is none.
    fn limit(&self, target: &Target, resource: Resource) -> Result<Option<u64>, ResizeError> {
        match self.read(target, self.mode().limit_file(resource)) {
            Ok(text) => Ok(bound(&text)),
            // Kernels without CONFIG_CFS_BANDWIDTH do not have the file, and no limit.
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, target: &Target, file: &'static str) -> Result<String, CgroupError> {
        self.hierarchies.read(&target.path, file)
    }

    fn write_back(&self, target: &Target, resource: Resource) -> Result<(), ResizeError> {
        for (file, value) in target.limits.files_of(self.mode(), resource) {
            self.hierarchies.write(&target.path, file, &value)?;
            let found = match self.read(target, file) {
                // A missing file is no limit.
                Err(error) if bound(&value).is_none() || is_absent(&error) => continue,
                found => found?,
            };
            if !same(file, &value, &found) {
                return Err(ResizeError::Kept {
                    path: target.path.clone(),
                    file,
                    value,
                    found: found.trim().to_owned(),
                });
            }
        }
        Ok(())
    }
}

fn is_absent(error: &CgroupError) -> bool {
    matches!(error, CgroupError::Access { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
#[path = "resize_test.rs"]
mod tests;
