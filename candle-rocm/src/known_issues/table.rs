//! The table of known issues. A new one is a row; what it says must be in a public source.

use super::{Affected, Consequence, Cure, KnownIssue, Version};

const fn version(major: u32, minor: u32, patch: u32) -> Version {
    Version {
        major,
        minor,
        patch,
    }
}

const fn rocm_before(major: u32, minor: u32, patch: u32) -> Affected {
    Affected::Rocm(Version::OLDEST, version(major, minor, patch))
}

const fn kernel_before(major: u32, minor: u32, patch: u32) -> Affected {
    Affected::Kernel(Version::OLDEST, version(major, minor, patch))
}

/// Every known issue.
pub const KNOWN_ISSUES: &[KnownIssue] = &[
    KnownIssue {
        id: "rocm-too-old",
        archs: &["gfx"],
        affected: rocm_before(6, 2, 0),
        cure: None,
        effect: "this program is made for ROCm 6.2 and newer",
        advice: "update ROCm to 6.2 or newer",
        sources: &["https://rocm.docs.amd.com/en/docs-6.2.0/about/release-notes.html"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "rocm-too-old-for-rdna4",
        archs: &["gfx1200", "gfx1201"],
        affected: rocm_before(6, 4, 1),
        cure: None,
        effect: "ROCm supports Radeon RX 9000 from 6.4.1 on",
        advice: "update ROCm to 6.4.1 or newer",
        sources: &["https://rocm.docs.amd.com/projects/install-on-linux/en/docs-6.4.1/reference/system-requirements.html"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "rocm-too-old-for-cdna4",
        archs: &["gfx950"],
        affected: rocm_before(7, 0, 0),
        cure: None,
        effect: "ROCm supports Instinct MI350 from 7.0 on",
        advice: "update ROCm to 7.0 or newer",
        sources: &["https://rocm.docs.amd.com/en/docs-7.0.0/about/release-notes.html"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "rocm-too-old-for-rdna3.5",
        archs: &["gfx115"],
        affected: rocm_before(7, 2, 0),
        cure: None,
        effect: "the runtime reckons with too few registers on Ryzen AI and is reported to crash in its first allocation",
        advice: "update ROCm to 7.2 or newer",
        sources: &[
            "https://github.com/ROCm/TheRock/issues/2991",
            "https://github.com/warpfront/hipfire/pull/81",
        ],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "kernel-saves-too-few-registers",
        archs: &["gfx115"],
        affected: kernel_before(6, 18, 4),
        cure: Some(Cure::ContextSave),
        effect: "the driver saves too few registers of interrupted waves, which ends in hangs and memory faults",
        advice: "update to Linux 6.18.4 or newer, or start with amdgpu.cwsr_enable=0",
        sources: &[
            "https://github.com/ROCm/TheRock/issues/2991",
            "https://github.com/ROCm/legacy-rocm-build/issues/5991",
            "https://github.com/ROCm/legacy-rocm-build/issues/5590",
        ],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "kernel-shows-part-of-the-memory",
        archs: &["gfx115"],
        affected: kernel_before(6, 16, 9),
        cure: None,
        effect: "ROCm may see only 15.5 GB of a larger memory carve-out",
        advice: "update to Linux 6.16.9 or newer",
        sources: &["https://github.com/ROCm/legacy-rocm-build/issues/5444"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "firmware-hangs",
        archs: &["gfx115"],
        affected: Affected::Firmware(0x83),
        cure: None,
        effect: "this firmware hangs and faults under compute and was withdrawn",
        advice: "install linux-firmware of December 2025 or newer (MES 0x80 is good), rebuild the initramfs and start again",
        sources: &["https://github.com/ROCm/legacy-rocm-build/issues/5724"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "graphs-give-wrong-results",
        archs: &["gfx94", "gfx950"],
        affected: Affected::Rocm(version(7, 2, 0), version(7, 2, 4)),
        cure: None,
        effect: "replayed graphs give wrong results in about one process of five, so kernels are launched one by one, which is slower",
        advice: "use ROCm 7.1, 7.2.4 or 7.13",
        sources: &[
            "https://github.com/ROCm/clr/issues/279",
            "https://github.com/vllm-project/vllm/pull/46386",
        ],
        consequence: Consequence::NoGraphs,
    },
    KnownIssue {
        id: "second-capture-fails",
        archs: &["gfx"],
        affected: Affected::Rocm(version(6, 4, 0), version(6, 4, 1)),
        cure: None,
        effect: "recording a second graph on a stream may fail; its kernels are launched one by one then",
        advice: "update ROCm to 6.4.1 or newer",
        sources: &["https://github.com/ROCm/legacy-rocm-build/issues/4614"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "kernel-6.18-page-faults",
        archs: &["gfx110", "gfx120"],
        affected: Affected::Kernel(version(6, 18, 0), version(6, 19, 0)),
        cure: None,
        effect: "memory faults are reported with 6.18.2 to 6.18.13 that 6.17 does not have",
        advice: "if the process ends by a memory access fault, use another kernel",
        sources: &[
            "https://github.com/ROCm/amdgpu/issues/204",
            "https://github.com/ROCm/legacy-rocm-build/issues/5833",
            "https://github.com/ROCm/legacy-rocm-build/issues/5990",
        ],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "rocblas-crashes-on-gfx906",
        archs: &["gfx906"],
        affected: Affected::Rocm(version(7, 1, 0), Version::NEWEST),
        cure: None,
        effect: "AMD no longer builds its libraries for this card, and rocBLAS is reported to crash",
        advice: "use ROCm 6.4, or a distribution that builds rocBLAS for gfx906",
        sources: &["https://github.com/ROCm/TheRock/issues/2347"],
        consequence: Consequence::Warn,
    },
    KnownIssue {
        id: "kernel-resets-queues",
        archs: &["gfx1103"],
        affected: Affected::Kernel(version(6, 14, 0), version(6, 15, 8)),
        cure: None,
        effect: "the GPU is reported to hang under compute on Radeon 780M",
        advice: "update to Linux 6.15.8 or newer",
        sources: &["https://github.com/lamikr/rocm_sdk_builder/issues/257"],
        consequence: Consequence::Warn,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arch;

    #[test]
    fn every_row_is_whole() {
        for (i, issue) in KNOWN_ISSUES.iter().enumerate() {
            let id = issue.id;
            assert!(KNOWN_ISSUES[..i].iter().all(|other| other.id != id), "{id}");
            assert!(!issue.sources.is_empty(), "{id}");
            for source in issue.sources {
                assert!(source.starts_with("https://"), "{id}: {source}");
            }
            for text in [issue.effect, issue.advice] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{id}: {text}");
            }
            for start in issue.archs {
                // A beginning that no supported processor has would never be met.
                let known = ["", "0", "00", "2", "3"].iter().any(|end| {
                    Arch::parse(&format!("{start}{end}")).is_some_and(|a| a.is_supported())
                });
                assert!(known || *start == "gfx", "{id}: {start}");
            }
            if let Affected::Rocm(from, before) | Affected::Kernel(from, before) = issue.affected {
                assert!(from < before, "{id}");
            }
        }
    }
}
