//! Rules of the segments.

use std::collections::HashMap;
use std::path::PathBuf;

use tenon_protocol::table::TableLayout;
use tenon_transport::HugePages;

use super::{Check, name_of};
use crate::config::error::Problem;
use crate::config::merge::SegmentSettings;
use crate::config::source::Sourced;
use crate::config::{Backing, SegmentConfig, size};
use crate::limits::{DEFAULT_SEGMENT_LEN_BYTES_MAX, SEGMENT_LEN_BYTES_MIN, SEGMENTS_MAX, SLOT_BYTES, SLOTS_MAX};

const HUGE_PAGES: &[(&str, HugePages)] = &[
    ("require", HugePages::Require),
    ("prefer", HugePages::Prefer),
    ("off", HugePages::Off),
];

/// The name of a choice in the file.
pub(in crate::config) fn huge_pages_name(huge_pages: HugePages) -> &'static str {
    name_of(HUGE_PAGES, &huge_pages)
}

impl Check<'_> {
    pub(super) fn segments(&mut self) -> Vec<SegmentConfig> {
        let Some(list) = &self.settings.segments else {
            return vec![self.default_segment()];
        };
        let count = list.value.len();
        match count {
            0 => self.refuse(&list.counted(), Problem::NoSegments),
            1..=SEGMENTS_MAX => {}
            _ => self.refuse(&list.counted(), Problem::TooManySegments { count }),
        }
        let mut files = HashMap::new();
        let segments: Vec<_> = list
            .value
            .iter()
            .filter_map(|entry| self.segment(entry, &mut files))
            .collect();
        let asked_bytes = memory_bytes(&segments);
        let ram_bytes = self.host.ram_bytes;
        if asked_bytes > ram_bytes {
            self.refuse(&list.counted(), Problem::MoreThanMemory { asked_bytes, ram_bytes });
        }
        segments
    }

    fn default_segment(&self) -> SegmentConfig {
        let quarter = self.host.ram_bytes / 4;
        let len_bytes = quarter.min(DEFAULT_SEGMENT_LEN_BYTES_MAX) / SEGMENT_LEN_BYTES_MIN * SEGMENT_LEN_BYTES_MIN;
        SegmentConfig {
            len_bytes,
            backing: Backing::Memfd(HugePages::Prefer),
            slots: default_slots(len_bytes),
        }
    }

    fn segment(&mut self, entry: &SegmentSettings, files: &mut HashMap<PathBuf, String>) -> Option<SegmentConfig> {
        let backing = self.backing(entry, files);
        let len_bytes = self.segment_len_bytes(entry, &backing)?;
        let slots = match &entry.slots {
            None => default_slots(len_bytes),
            Some(setting) => {
                let slots = self.number(setting, 1, SLOTS_MAX.into());
                u32::try_from(slots).unwrap_or(SLOTS_MAX)
            }
        };
        Some(SegmentConfig {
            len_bytes,
            backing,
            slots,
        })
    }

    fn backing(&mut self, entry: &SegmentSettings, files: &mut HashMap<PathBuf, String>) -> Backing {
        let huge_pages = entry
            .huge_pages
            .as_ref()
            .and_then(|setting| self.choice(setting, HUGE_PAGES));
        let Some(file) = &entry.file else {
            return Backing::Memfd(huge_pages.unwrap_or(HugePages::Prefer));
        };
        if let Some(setting) = &entry.huge_pages {
            self.refuse(setting, Problem::HugePagesOfFile);
        }
        let path = self.absolute_path(file);
        self.once(files, path.clone(), file);
        Backing::File(path)
    }

    fn segment_len_bytes(&mut self, entry: &SegmentSettings, backing: &Backing) -> Option<u64> {
        let written = &entry.size;
        let setting: Sourced<String> = written.with(written.value.to_string());
        let len_bytes = match size::parse(&setting.value) {
            Ok(len_bytes) => len_bytes,
            Err(error) => {
                self.refuse(&setting, error.into());
                return None;
            }
        };
        let page_bytes = match backing {
            Backing::Memfd(HugePages::Require) => self.host.huge_page_bytes.unwrap_or(self.host.page_bytes),
            _ => self.host.page_bytes,
        };
        if len_bytes < SEGMENT_LEN_BYTES_MIN {
            self.refuse(&setting, Problem::SegmentTooSmall);
        } else if !len_bytes.is_multiple_of(page_bytes) {
            self.refuse(&setting, Problem::NotWholePages { page_bytes });
        }
        Some(len_bytes)
    }
}

/// Descriptors of a segment for which no other number was asked.
pub(crate) fn default_slots(len_bytes: u64) -> u32 {
    let slots = (len_bytes / SLOT_BYTES).clamp(1, SLOTS_MAX.into());
    u32::try_from(slots).unwrap_or(SLOTS_MAX)
}

/// What segments take from the host's memory. A file may lie on pages that are set aside for its file system, so only
/// its table counts.
fn memory_bytes(segments: &[SegmentConfig]) -> u64 {
    let taken = segments.iter().map(|segment| {
        let table_bytes = TableLayout::new(segment.len_bytes, segment.slots).len_bytes();
        match segment.backing {
            Backing::Memfd(_) => segment.len_bytes.saturating_add(table_bytes),
            Backing::File(_) => table_bytes,
        }
    });
    taken.fold(0, u64::saturating_add)
}
