//! Images that did not fit on the disk. They are not unpacked again and again, and what was unpacked does not stay.

use std::time::Duration;

use super::{PullFailure, lock};
use crate::images::{ImageStore, KeepFree};
use crate::node::execute::Tools;
use crate::node::{Input, now, unblock};
use crate::plan::event::ImageFailure;
use crate::plan::pull::{Room, Unfit};
use crate::plan::{Event, NodeFact};
use crate::spec::ImageName;
use crate::sys::file_system::file_system;
use crate::types::Gather;

/// How often, and after what pauses, to look whether a worker that was killed has ended.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

impl Tools {
    /// The failure of the last pull of an image that did not fit, if there is hardly more room by now.
    pub(super) async fn still_unfit(&self, image: &ImageName) -> Option<PullFailure> {
        let name = image.to_string();
        let (unfit, why) = lock(&self.pulls.0.unfit).get(&name).cloned()?;
        let room = self.room_of(image).await?;
        let message = format!("{why}; it is pulled again once clearly more is free");
        unfit.still(room, now().time).then_some(PullFailure {
            failure: ImageFailure::Pull,
            message,
            offline: false,
        })
    }

    /// Removes what was unpacked of an image that does not fit, and remembers how much room it had.
    pub(super) async fn note_unfit(&self, image: &ImageName, why: String) {
        for _ in 0..LOOKS {
            let (images, of) = (self.images.clone(), image.clone());
            if unblock(move || images.drop_unpacked(&of)).await {
                break;
            }
            smol::Timer::after(PAUSE).await;
        }
        if let Some(room) = self.room_of(image).await {
            let at = now().time;
            let mut all = lock(&self.pulls.0.unfit);
            // Images that no pod asks for any more are forgotten after a while.
            all.retain(|_, (unfit, _)| unfit.still(Room::default(), at));
            all.insert(image.to_string(), (Unfit { at, room }, why));
        }
    }

    /// Has unused images removed.
    pub(super) async fn tell_lack_of_room(&self) {
        let fact = Event::Node(NodeFact::ImageLacksRoom);
        let _ = self.inputs.send(Input::Event(fact)).await;
    }

    /// Forgets which images did not fit: images were removed, or a retry is asked for. Returns the event for the pods that
    /// wait for them, if there are such images.
    pub(in crate::node) fn room_made_for_images(&self) -> Option<Event> {
        let images = std::mem::take(&mut *lock(&self.pulls.0.unfit));
        let fact = NodeFact::ImagesChanged(Some(images.keys().cloned().gather()));
        (!images.is_empty()).then_some(Event::Node(fact))
    }

    /// The same, and sends the event.
    pub(in crate::node) async fn tell_room_made(&self) {
        if let Some(event) = self.room_made_for_images() {
            let _ = self.inputs.send(Input::Event(event)).await;
        }
    }

    /// Forgets that an image did not fit.
    pub(super) fn note_fit(&self, image: &ImageName) {
        lock(&self.pulls.0.unfit).remove(&image.to_string());
    }

    async fn room_of(&self, image: &ImageName) -> Option<Room> {
        let (images, of, keep) = (self.images.clone(), image.clone(), self.keep_free());
        unblock(move || room(&images, &of, keep)).await
    }
}

/// What a pull of this image has. Blocking.
fn room(images: &ImageStore, image: &ImageName, keep: KeepFree) -> Option<Room> {
    let fs = file_system(images.dir())?;
    let free = fs.available_bytes.saturating_sub(keep.bytes);
    Some(Room {
        bytes: free.saturating_add(images.arrived_bytes(image)),
        inodes: fs.inodes_free.saturating_sub(keep.inodes),
    })
}
