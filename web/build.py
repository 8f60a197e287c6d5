#!/usr/bin/env python3
"""Makes the page: one HTML file with its style, scripts and engine inside. Needs Python alone.

    build.py ENGINE_JS ENGINE_WASM OUTPUT
"""
import base64
import gzip
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
IMPORT = re.compile(r"^import \{([^}]*)\} from '\./([\w.]+)';\n", re.M)
EXPORT = re.compile(r"^export ((?:async )?function|class|const) (\w+)", re.M)
MOST_BYTES = 3 * 1024 * 1024


def in_order(entry, seen=None):
    """The modules that `entry` needs, each after those that it imports."""
    seen = {} if seen is None else seen
    if entry in seen:
        return seen
    text = (HERE / "src" / entry).read_text()
    for _, name in IMPORT.findall(text):
        in_order(name, seen)
    seen[entry] = text
    return seen


def bundle(entry):
    """One script: every module a function that returns what it exports."""
    parts = ["'use strict';\nconst modules = {};\n"]
    for name, text in in_order(entry).items():
        text = IMPORT.sub(lambda m: f"const {{{m[1]}}} = modules['{m[2]}'];\n", text)
        exported = [found[1] for found in EXPORT.findall(text)]
        text = EXPORT.sub(r"\1 \2", text)
        if re.search(r"^(import|export)\b", text, re.M):
            sys.exit(f"build.py: {name}: only `import {{ names }} from './module.js';` and exported declarations are known here")
        parts.append(f"// --- {name} ---\nmodules['{name}'] = (() => {{\n{text}return {{ {', '.join(exported)} }};\n}})();\n")
    return "".join(parts)


def inside_script(text):
    return text.replace("</script", "<\\/script")


def main(engine_js, engine_wasm, output):
    glue = pathlib.Path(engine_js).read_text()
    wasm = base64.b64encode(gzip.compress(pathlib.Path(engine_wasm).read_bytes(), 9, mtime=0)).decode()
    page = (HERE / "page.html").read_text()
    for mark, text in {
        "/* style */": (HERE / "style.css").read_text(),
        "/* engine */": inside_script(glue),
        "/* worker */": inside_script(glue + "\nself.createEngine = createEngine;\n" + bundle("planner_worker.js")),
        "/* page */": inside_script(bundle("main.js")),
        "(wasm)": wasm,
    }.items():
        if page.count(mark) != 1:
            sys.exit(f"build.py: page.html has {mark} {page.count(mark)} times, not once")
        page = page.replace(mark, text)
    data = page.encode()
    if len(data) > MOST_BYTES:
        sys.exit(f"build.py: the page has {len(data)} bytes, the most is {MOST_BYTES}")
    target = pathlib.Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    print(f"page: {target}, {len(data)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
