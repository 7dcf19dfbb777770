"""The one vocabulary of dimension names, in every shape annotation of the project.

| letter | word        | what it counts                                              |
|--------|-------------|-------------------------------------------------------------|
| B      | `batch`     | sequences                                                   |
| T      | `queries`   | positions that look                                         |
| S      | `keys`      | positions that are looked at                                |
|        | `length`    | positions, where it does not matter which of the two        |
| D      | `embed_dim` | features of a token                                         |
| N      | `heads`     | attention heads                                             |
| H      | `head_dim`  | features of a head                                          |
| F      | `hidden`    | features inside the feed-forward                            |
| V      | `vocab`     | tokens of the vocabulary                                    |
|        | `features`  | features of whatever a linear map is given or returns       |

A bare `1` is an axis kept for broadcasting, `*batch` any leading axes.
"""

LEGEND = {
    "batch": "B",
    "queries": "T",
    "keys": "S",
    "length": "T",
    "embed_dim": "D",
    "heads": "N",
    "head_dim": "H",
    "hidden": "F",
    "vocab": "V",
    "features": "D",
    "features_in": "D",
    "features_out": "D",
    "max_length": "T",
}
