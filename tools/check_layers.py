#!/usr/bin/env python3
"""Holds every #include of the house to its floors; prints each breach and exits 1 if there is one.

A file of room R may include a room of a lower floor, and a room of R's own floor only when R's
CMakeLists.txt names it in DEPS (tests included). Boost headers may be included inside io/ only.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"


def read_rooms():
    floors, deps = {}, {}
    for lists in sorted(SRC.glob("*/CMakeLists.txt")):
        text = lists.read_text()
        match = re.search(r"penstock_room\(\s*(\w+)\s+FLOOR\s+(\d)(.*?)\)", text, re.S)
        if not match:
            continue
        name, floor, rest = match.groups()
        floors[name] = int(floor)
        listed = re.search(r"\bDEPS\b(.*?)(?:\b(?:LINK|PRIVATE_LINK|TEST_LINK)\b|$)", rest, re.S)
        deps[name] = set(listed.group(1).split()) if listed else set()
    return floors, deps


def main():
    floors, deps = read_rooms()
    breaches = []
    files = [p for p in SRC.rglob("*") if p.suffix in (".h", ".cc")]
    for path in sorted(files):
        room = path.relative_to(SRC).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not match:
                continue
            kind, target = match.groups()
            where = f"{path.relative_to(ROOT)}:{number}"
            if target.startswith("boost/") and room != "io":
                breaches.append(f"{where}: Boost belongs inside io/: {target}")
            if kind == "<":
                continue
            other = target.split("/")[0]
            if other == room or "/" not in target:
                if "/" not in target:
                    breaches.append(f"{where}: include by room path, not '{target}'")
                continue
            if other not in floors:
                breaches.append(f"{where}: unknown room '{other}'")
            elif floors[other] > floors[room]:
                breaches.append(f"{where}: {room} (floor {floors[room]}) goes up to {other} (floor {floors[other]})")
            elif floors[other] == floors[room] and other not in deps[room]:
                breaches.append(f"{where}: {room} does not name {other}, of its own floor, in its CMakeLists.txt")
    for breach in breaches:
        print(breach)
    print(f"layers: {len(files)} files, {len(floors)} rooms, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
