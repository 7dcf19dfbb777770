"""`python -m meta.fuzz`."""

from meta.fuzz.campaign import main

raise SystemExit(main())
