//! Memory limits of Linux control groups.
//!
//! `/proc/self/cgroup` names the process's group in each hierarchy, `/proc/self/mountinfo` where a hierarchy is mounted and from which group
//! on. Every group from there down to the process's own limits it.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use crate::{Bound, Room};

/// A limit of version 1 above this is none: the kernel's largest number of pages.
const UNLIMITED: u64 = 1 << 62;

/// The version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that is mounted.
    root: PathBuf,
    /// Where.
    point: PathBuf,
}

/// What each group of the process leaves it.
pub fn room(root: &Path) -> impl Iterator<Item = Room> {
    let (Ok(own), Ok(mounts)) =
        (read_to_string(root.join("proc/self/cgroup")), read_to_string(root.join("proc/self/mountinfo")))
    else {
        return Vec::new().into_iter();
    };
    let mut rooms = Vec::new();
    for mount in mounts.lines().filter_map(mount) {
        let Some(group) = own.lines().find_map(|line| own_group(line, mount.version)) else { continue };
        for folder in folders(&mount, group) {
            rooms.extend(left(root, &folder, mount.version));
        }
    }
    rooms.into_iter()
}

/// The process's group in the hierarchy with the memory controller: `0::/a/b` of version 2, `9:memory:/a/b` of version 1.
fn own_group(line: &str, version: Version) -> Option<&Path> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = match version {
        Version::Two => id == "0" && controllers.is_empty(),
        Version::One => controllers.split(',').any(|name| name == "memory"),
    };
    is_it.then_some(Path::new(path))
}

/// A line of `mountinfo`, if it is a hierarchy that may limit memory: `36 35 0:30 ROOT POINT OPTIONS FIELDS... - TYPE SOURCE OPTIONS`.
fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
    let version = match kind {
        "cgroup2" => Version::Two,
        "cgroup" if options.split(',').any(|name| name == "memory") => Version::One,
        _ => return None,
    };
    let mut before = before.split(' ').skip(3);
    Some(Mount { version, root: unescaped(before.next()?), point: unescaped(before.next()?) })
}

/// A path with blanks as `\040`.
fn unescaped(path: &str) -> PathBuf {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\").into()
}

/// The folders of the process's group and of all that contain it, as far as they are mounted.
fn folders(mount: &Mount, group: &Path) -> Vec<PathBuf> {
    // Of a group outside of what is mounted here (`/../..`), only the mounted one is known.
    let below = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let is_below = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let below = if is_below { below } else { Path::new("") };
    // Joining an empty path would add a slash.
    below.ancestors().map(|path| mount.point.join(path).components().collect()).collect()
}

/// What a group leaves, if it has a limit.
fn left(root: &Path, folder: &Path, version: Version) -> Option<Room> {
    let inside = root.join(folder.strip_prefix("/").unwrap_or(folder));
    let number = |name: &str| read_to_string(inside.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limits, used): (&[&str], _) = match version {
        // Above `memory.high` the kernel slows the processes down until they give memory back.
        Version::Two => (&["memory.max", "memory.high"], number("memory.current")),
        Version::One => (&["memory.limit_in_bytes"], number("memory.usage_in_bytes")),
    };
    let limit = limits.iter().filter_map(|name| number(name)).min().filter(|limit| *limit < UNLIMITED)?;
    let stat = read_to_string(inside.join("memory.stat")).unwrap_or_default();
    let held = used.unwrap_or(0).saturating_sub(file_cache(&stat, version));
    Some(Room {
        bytes: limit.saturating_sub(held),
        bound: Bound::Group { path: folder.to_path_buf(), limit },
    })
}

/// Bytes of cached files, which the kernel takes back when memory is needed.
fn file_cache(stat: &str, version: Version) -> u64 {
    let names = match version {
        Version::Two => ["active_file", "inactive_file"],
        Version::One => ["total_active_file", "total_inactive_file"],
    };
    let counts = stat.lines().filter_map(|line| {
        let (name, count) = line.split_once(' ')?;
        names.contains(&name).then(|| count.trim().parse::<u64>().ok())?
    });
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a system, by path.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn rooms(files: &[(&str, &str)]) -> Vec<(String, u64, u64)> {
        let root = system(files);
        let of = |room: Room| match room.bound {
            Bound::Group { path, limit } => (path.display().to_string(), limit, room.bytes),
            other => panic!("{other:?}"),
        };
        let mut all: Vec<_> = room(root.path()).map(of).collect();
        all.sort();
        all
    }

    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "25 24 0:22 / / rw - ext4 /dev/sda rw\n36 32 0:33 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory\n\
                      37 32 0:34 / /sys/fs/cgroup/cpu rw shared:16 - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn every_group_above_the_process_limits_it() {
        // systemd's MemoryMax of a slice, and a limit of the service in it.
        let found = rooms(&[
            ("proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a.slice/memory.max", "3000\n"),
            ("sys/fs/cgroup/a.slice/memory.high", "max\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "2500\n"),
            (
                "sys/fs/cgroup/a.slice/memory.stat",
                "anon 400\nfile 2000\nshmem 100\nactive_file 900\ninactive_file 1000\n",
            ),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.high", "2000\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.current", "500\n"),
            ("sys/fs/cgroup/other/memory.max", "1\n"),
        ]);
        let expected =
            [("/sys/fs/cgroup/a.slice", 3000, 2400), ("/sys/fs/cgroup/a.slice/b.service", 2000, 1500)];
        assert_eq!(found, expected.map(|(path, limit, left)| (path.to_string(), limit, left)));
    }

    #[test]
    fn a_group_of_version_1_is_found_beside_version_2() {
        let hybrid = format!("{V1}40 32 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let found = rooms(&[
            ("proc/self/cgroup", "9:memory:/slurm/job_1\n4:cpu,cpuacct:/x\n0::/x\n"),
            ("proc/self/mountinfo", &hybrid),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "4000\n"),
            ("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "1000\n"),
            (
                "sys/fs/cgroup/memory/slurm/job_1/memory.stat",
                "active_file 7\ntotal_active_file 100\ntotal_inactive_file 200\n",
            ),
        ]);
        assert_eq!(found, [("/sys/fs/cgroup/memory/slurm/job_1".to_string(), 4000, 3300)]);
    }

    #[test]
    fn containers_see_their_own_group_as_the_mounted_one() {
        // Without a namespace of its own: the mount begins at the container's group.
        let mounted = "36 32 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let own = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n");
        for group in ["/docker/abc", "/docker/other", "/docker/abc/../../x", "/../.."] {
            let found = rooms(&[
                ("proc/self/cgroup", &format!("9:memory:{group}\n")),
                ("proc/self/mountinfo", mounted),
                own,
            ]);
            assert_eq!(found, [("/sys/fs/cgroup/memory".to_string(), 4000, 4000)], "{group}");
        }
        let found = rooms(&[
            ("proc/self/cgroup", "9:memory:/docker/abc/inner\n"),
            ("proc/self/mountinfo", mounted),
            own,
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "3000\n"),
        ]);
        assert_eq!(found.len(), 2);
        // With one.
        let found = rooms(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "5000\n"),
        ]);
        assert_eq!(found, [("/sys/fs/cgroup".to_string(), 5000, 5000)]);
    }

    #[test]
    fn odd_files_limit_nothing() {
        for (own, mounts, limit) in [
            ("", V2, "1"),
            ("0::/", "", "1"),
            ("0::/", "nonsense - cgroup2", "1"),
            ("0:/", V2, "1"),
            ("0::/", V2, "max"),
            ("0::/", V2, "-1"),
            ("0::/", V2, ""),
        ] {
            let found = rooms(&[
                ("proc/self/cgroup", own),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory.max", limit),
            ]);
            assert_eq!(found, [], "{own:?} {mounts:?} {limit:?}");
        }
        assert_eq!(rooms(&[]), []);
        let blank = mount("1 2 0:1 / /sys/my\\040groups rw - cgroup2 none rw").unwrap();
        assert_eq!(blank.point, Path::new("/sys/my groups"));
    }
}
