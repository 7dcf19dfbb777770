"""`python -m docs.site` builds the site into build/site/html; with `serve`, it also opens the site in a browser."""

import sys

from docs.site.build import BUILT, build, configure, write_pages, zensical

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        write_pages(BUILT / "pages")
        configure(BUILT)
        zensical(BUILT, "serve")
    elif sys.argv[1:]:
        sys.exit(f"python -m docs.site {' '.join(sys.argv[1:])}: expected no argument, or serve")
    else:
        print(f"the site is in {build()}")
