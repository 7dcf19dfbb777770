"""`python -m docs.site` builds the site into build/site/html; with `serve`, it shows it in a browser."""

from __future__ import annotations

import shutil
import sys

from docs.site.build import BUILT, build, write_pages, zensical
from docs.site.pages import CONFIGURATION

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        write_pages(BUILT / "pages")
        shutil.copyfile(CONFIGURATION, BUILT / "zensical.toml")
        zensical(BUILT, "serve")
    elif sys.argv[1:]:
        sys.exit(f"python -m docs.site {' '.join(sys.argv[1:])}: expected no argument, or serve")
    else:
        print(f"{build()} is the site")
