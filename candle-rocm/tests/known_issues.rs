//! Known issues of what is installed, on trees as the kernel lays them out.

mod common;
mod isolated;

use candle_rocm::known_issues::{
    forbids_graphs, known_issues, Component, Release, Runtime, Version, Versions, KNOWN_ISSUES,
};
use isolated::in_child;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A root folder that is removed afterwards.
struct Root(PathBuf);

impl Root {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("known-issues-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Root(path)
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn read(&self, runtime: Option<&Runtime>) -> Versions {
        Versions::read_from(&self.0, runtime, None)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn version(major: u32, minor: u32, patch: u32) -> Version {
    Version {
        major,
        minor,
        patch,
    }
}

/// The runtime of a release as AMD's packages install it.
fn runtime(file: &str, number: u32) -> Runtime {
    Runtime {
        number,
        file: Some(file.into()),
        opened: "libamdhip64.so.7".into(),
    }
}

fn with_rocm(major: u32, minor: u32, patch: u32) -> Versions {
    Versions {
        rocm: Some(Release::exactly(version(major, minor, patch))),
        ..Versions::default()
    }
}

fn with_kernel(text: &str) -> Versions {
    Versions {
        kernel: Version::parse(text),
        kernel_release: Some(text.into()),
        ..Versions::default()
    }
}

fn ids(arch: &str, versions: &Versions) -> Vec<&'static str> {
    let issues = known_issues(arch, versions);
    issues.into_iter().map(|issue| issue.id).collect()
}

#[test]
fn a_release_is_known_by_its_file_else_by_its_folder_else_in_part() {
    let root = Root::new("release");
    let told = |runtime: &Runtime| root.read(Some(runtime)).rocm.unwrap();
    let packaged = "/opt/rocm-7.2.3/lib/libamdhip64.so.7.2.70203";
    assert_eq!(
        told(&runtime(packaged, 70_253_211)),
        Release::exactly(version(7, 2, 3))
    );
    // A build number of a distribution says nothing.
    let of_fedora = "/usr/lib64/libamdhip64.so.7.1.52802";
    let unknown = told(&runtime(of_fedora, 70_152_802));
    assert_eq!(unknown, Release::of_series(7, 1));
    assert_eq!(unknown.to_string(), "7.1 (patch level unknown)");
    // Unless the installation tells its release.
    let file = root.write("rocm/lib/libamdhip64.so.7.1.52802", "");
    root.write("rocm/.info/version", "7.1.1-38\n");
    let file = file.to_str().unwrap();
    let release = told(&runtime(file, 70_152_802));
    assert_eq!(release, Release::exactly(version(7, 1, 1)));
    // That of another series is another installation's.
    root.write("rocm/.info/version", "6.4.1-83\n");
    let release = told(&runtime(file, 70_152_802));
    assert_eq!(release, Release::of_series(7, 1));
    // Two digits of the second number: ROCm 7.13.
    let newest = "/opt/rocm/lib/libamdhip64.so.7.13.71300";
    assert_eq!(
        told(&runtime(newest, 71_300_123)),
        Release::exactly(version(7, 13, 0))
    );
    assert_eq!(root.read(None).rocm, None);
}

#[test]
fn kernel_driver_and_firmware_are_read() {
    let root = Root::new("kernel");
    assert_eq!(root.read(None), Versions::default());
    root.write("proc/sys/kernel/osrelease", "6.14.0-1018-oem\n");
    root.write("sys/module/amdgpu/version", "6.16.13\n");
    root.write("sys/module/amdgpu/parameters/cwsr_enable", "1\n");
    let node = "sys/class/kfd/kfd/topology/nodes/1/properties";
    root.write(node, "simd_count 80\ncwsr_size 0\n");
    let versions = root.read(None);
    assert_eq!(versions.kernel, Some(version(6, 14, 0)));
    assert_eq!(versions.installed(Component::Kernel), "6.14.0-1018-oem");
    assert_eq!(versions.amdgpu_driver.as_deref(), Some("6.16.13"));
    assert_eq!(
        (versions.saves_context, versions.tells_context_size),
        (Some(true), false)
    );
    root.write(node, "simd_count 80\ncwsr_size 19185664\n");
    root.write("sys/module/amdgpu/parameters/cwsr_enable", "0\n");
    let versions = root.read(None);
    assert_eq!(
        (versions.saves_context, versions.tells_context_size),
        (Some(false), true)
    );
}

#[test]
fn firmware_is_that_of_the_gpu_and_read_by_root_from_debugfs() {
    let root = Root::new("firmware");
    // Two cards; what the driver shows may have bits above the version.
    for (card, pci, text) in [
        (0, "0000:03:00.0", "0x00006080"),
        (1, "0000:c3:00.0", "0x00000083"),
    ] {
        root.write(
            &format!("sys/devices/{pci}/fw_version/mes_fw_version"),
            text,
        );
        let folder = root.0.join(format!("sys/class/drm/card{card}"));
        fs::create_dir_all(&folder).unwrap();
        symlink(
            root.0.join(format!("sys/devices/{pci}")),
            folder.join("device"),
        )
        .unwrap();
    }
    let of = |pci| Versions::read_from(&root.0, None, Some(pci)).mes_firmware;
    assert_eq!(of("0000:03:00.0"), Some(0x80));
    assert_eq!(of("0000:c3:00.0"), Some(0x83));
    assert_eq!(of("0000:ff:00.0"), None);
    assert_eq!(root.read(None).mes_firmware, Some(0x80));

    let root = Root::new("debugfs");
    let folder = "sys/kernel/debug/dri/1";
    root.write(
        &format!("{folder}/name"),
        "amdgpu dev=0000:c3:00.0 unique=0000:c3:00.0\n",
    );
    root.write(
        &format!("{folder}/amdgpu_firmware_info"),
        "VCE feature version: 0, firmware version: 0x00000000\n\
         MES_KIQ feature version: 6, firmware version: 0x0000006f\n\
         MES feature version: 1, firmware version: 0x00000083\n",
    );
    let of = |pci| Versions::read_from(&root.0, None, Some(pci)).mes_firmware;
    assert_eq!(of("0000:c3:00.0"), Some(0x83));
    assert_eq!(of("0000:03:00.0"), None);
    assert_eq!(ids("gfx1150", &root.read(None)), ["firmware-hangs"]);
    assert!(ids("gfx1100", &root.read(None)).is_empty());
}

#[test]
fn each_arch_has_its_least_release() {
    for (arch, least, before) in [
        ("gfx1100", (6, 2, 0), (6, 1, 3)),
        ("gfx1201", (6, 4, 1), (6, 4, 0)),
        ("gfx1200", (6, 4, 1), (6, 3, 4)),
        ("gfx950:sramecc+:xnack-", (7, 0, 0), (6, 4, 4)),
        ("gfx1151", (7, 2, 0), (7, 1, 1)),
        ("gfx1152", (7, 2, 0), (7, 0, 2)),
    ] {
        let is_too_old = |(major, minor, patch)| {
            let found = ids(arch, &with_rocm(major, minor, patch));
            found.iter().any(|id| id.starts_with("rocm-too-old"))
        };
        assert!(is_too_old(before), "{arch}");
        assert!(!is_too_old(least), "{arch}");
    }
}

#[test]
fn wrong_graphs_are_those_of_7_2_0_to_7_2_3_on_cdna3_and_4() {
    let id = "graphs-give-wrong-results";
    for patch in 0..=3 {
        for arch in ["gfx942:sramecc+:xnack-", "gfx950"] {
            assert!(ids(arch, &with_rocm(7, 2, patch)).contains(&id), "{arch}");
        }
        for arch in ["gfx90a", "gfx1100", "gfx1201"] {
            assert!(!ids(arch, &with_rocm(7, 2, patch)).contains(&id), "{arch}");
        }
    }
    for (major, minor, patch) in [(7, 1, 1), (7, 2, 4), (7, 13, 0), (6, 4, 3)] {
        assert!(!ids("gfx942", &with_rocm(major, minor, patch)).contains(&id));
    }
    // A release that may be one of them is treated as one of them.
    let unknown = Versions {
        rocm: Some(Release::of_series(7, 2)),
        ..Versions::default()
    };
    assert!(ids("gfx942", &unknown).contains(&id));
}

#[test]
fn an_old_kernel_is_no_issue_where_it_was_mended_or_does_not_save() {
    let id = "kernel-saves-too-few-registers";
    let old = with_kernel("6.17.0-20-generic");
    assert!(ids("gfx1151", &old).contains(&id));
    assert!(!ids("gfx1100", &old).contains(&id));
    assert!(!ids("gfx1151", &with_kernel("6.18.4-arch1-1")).contains(&id));
    assert!(!ids("gfx1151", &with_kernel("7.0.0-28-generic")).contains(&id));
    let mended = Versions {
        tells_context_size: true,
        ..old.clone()
    };
    assert!(!ids("gfx1151", &mended).contains(&id));
    let off = Versions {
        saves_context: Some(false),
        ..old.clone()
    };
    assert!(!ids("gfx1151", &off).contains(&id));
    let issue = KNOWN_ISSUES.iter().find(|issue| issue.id == id).unwrap();
    let text = issue.describe(&old);
    for part in [
        "Linux 6.17.0-20-generic",
        "6.18.4",
        "cwsr_enable=0",
        "https://",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn nothing_is_known_of_what_is_not_known() {
    for arch in ["gfx942", "gfx1151", "gfx1201", ""] {
        assert!(ids(arch, &Versions::default()).is_empty());
    }
    assert_eq!(Version::parse("rolling"), None);
    assert_eq!(Version::parse("6"), None);
    assert_eq!(Version::parse("6.18-rc6"), Some(version(6, 18, 0)));
}

/// A folder with hip-sim that says which release it is.
fn install(root: &Root, release: &str) -> PathBuf {
    let library = hip_sim::install::find_library(&std::env::current_exe().unwrap()).unwrap();
    let folder = root.0.join("rocm");
    hip_sim::install::install(&library, &folder).unwrap();
    root.write("rocm/.info/version", release);
    folder
}

#[test]
fn a_device_forbids_graphs_by_release_and_arch() {
    let name = "a_device_forbids_graphs_by_release_and_arch";
    let forbidden = |release: &str, arch: &str, expected: bool| {
        let root = Root::new(&format!("graphs-{release}-{arch}"));
        let folder = match isolated::is_child(name) {
            true => PathBuf::new(),
            false => install(&root, release),
        };
        let environment = [
            ("ROCM_PATH", folder.to_str().unwrap()),
            ("HIP_SIM_ARCH", arch),
            ("KNOWN_ISSUES_EXPECTED", if expected { "1" } else { "0" }),
        ];
        in_child(name, &environment, || {
            let expected = std::env::var("KNOWN_ISSUES_EXPECTED").unwrap() == "1";
            let issue = forbids_graphs(&common::device());
            assert_eq!(issue.is_some(), expected, "{issue:?}");
        });
    };
    forbidden("7.2.3-81", "gfx942", true);
    if !isolated::is_child(name) {
        forbidden("7.2.4-93", "gfx942", false);
        forbidden("7.2.3-81", "gfx1100", false);
    }
}
