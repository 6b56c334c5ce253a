//! COCO's file of annotations, parsed without its segmentations.

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// The parts of a file that become columns; everything else in it is skipped.
#[derive(Debug, Deserialize)]
pub(super) struct File {
    pub(super) images: Vec<Image>,
    #[serde(default)]
    pub(super) annotations: Vec<Annotation>,
    #[serde(default)]
    pub(super) categories: Vec<Category>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Image {
    pub(super) id: i64,
    pub(super) file_name: String,
    pub(super) width: Option<i64>,
    pub(super) height: Option<i64>,
}

/// An object in an image, or its caption.
#[derive(Debug, Deserialize)]
pub(super) struct Annotation {
    pub(super) id: Option<i64>,
    pub(super) image_id: i64,
    pub(super) bbox: Option<Box4>,
    pub(super) category_id: Option<i64>,
    pub(super) area: Option<f32>,
    pub(super) iscrowd: Option<Flag>,
    pub(super) keypoints: Option<Vec<f32>>,
    pub(super) caption: Option<String>,
    /// Only panoptic segmentations have these, which are not read.
    pub(super) segments_info: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Category {
    pub(super) id: i64,
    pub(super) name: String,
}

/// The numbers of a box, without an allocation, and how many there were.
#[derive(Debug, Clone, Copy)]
pub(super) struct Box4 {
    pub(super) numbers: [f32; 4],
    pub(super) found: usize,
}

impl<'de> Deserialize<'de> for Box4 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;

        impl<'de> Visitor<'de> for Numbers {
            type Value = Box4;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of 4 numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Box4, A::Error> {
                let mut read = Box4 { numbers: [0.0; 4], found: 0 };
                while let Some(number) = list.next_element::<f32>()? {
                    if let Some(place) = read.numbers.get_mut(read.found) {
                        *place = number;
                    }
                    read.found += 1;
                }
                Ok(read)
            }
        }
        deserializer.deserialize_seq(Numbers)
    }
}

/// A flag: 0 or 1, as COCO writes it, or a boolean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("0, 1, true or false")
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Flag, E> {
                Ok(Flag(flag))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Flag, E> {
                match number {
                    0 | 1 => Ok(Flag(number == 1)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Unsigned(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}
