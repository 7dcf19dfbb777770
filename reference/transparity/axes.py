"""The names of the dimensions in the project's shape annotations.

| letter | name                          | counts                                                |
|--------|-------------------------------|-------------------------------------------------------|
| B      | `batch`                       | sequences                                             |
| T      | `queries`                     | positions of queries                                  |
| S      | `keys`                        | positions of keys                                     |
| T      | `length`                      | positions of either                                   |
| T      | `new_tokens`, `total_length`  | positions to generate; those and the prompt's         |
| S      | `memory`                      | positions of the source that a decoder attends to     |
| B      | `beams`, `rows`               | continuations of a sequence; rows of a batch          |
| D      | `embed_dim`                   | features of a token                                   |
| D      | `features_in`, `features_out` | input and output features of a linear map             |
| D      | `features`                    | features that a norm is over, or of a pooled output   |
| N      | `heads`                       | attention heads                                       |
| K      | `key_heads`                   | heads of keys and values, which several heads share   |
| N      | `any_heads`                   | heads of queries or of keys                           |
| H      | `head_dim`                    | features of a head                                    |
| H      | `value_dim`                   | features of a head of the values                      |
| D      | `attention_dim`               | features of all heads together                        |
| P      | `pairs`                       | pairs of a head's features that are rotated           |
| E      | `experts`                     | experts of a feed-forward                             |
| V      | `vocab`                       | tokens of the vocabulary                              |
| C      | `classes`                     | classes of a head                                     |
| B      | `channels`                    | channels of an image                                  |
| Y      | `height`                      | rows of pixels                                        |
| X      | `width`                       | columns of pixels                                     |
| T      | `patches`                     | patches of an image                                   |
| D      | `patch_dim`                   | numbers in a patch                                    |
| D      | `mel_bins`                    | mel bins of a spectrogram                             |
| T      | `frames`                      | frames of audio                                       |
| T      | `earlier`                     | positions before the convolved ones                   |
| M      | `chunks`                      | pieces of a row, one after another in a recurrence    |
| T      | `chunk`                       | positions of a piece                                  |
| K      | `steps`                       | steps of an optimizer                                 |

A bare `1` is an axis kept for broadcasting; `#batch` may be 1; `*batch` is any leading axes.
"""

LEGEND = {
    "batch": "B",
    "queries": "T",
    "keys": "S",
    "length": "T",
    "new_tokens": "T",
    "total_length": "T",
    "memory": "S",
    "beams": "B",
    "rows": "B",
    "embed_dim": "D",
    "features_in": "D",
    "features": "D",
    "features_out": "D",
    "heads": "N",
    "key_heads": "K",
    "any_heads": "N",
    "head_dim": "H",
    "value_dim": "H",
    "attention_dim": "D",
    "pairs": "P",
    "experts": "E",
    "vocab": "V",
    "classes": "C",
    "channels": "B",
    "height": "Y",
    "width": "X",
    "patches": "T",
    "patch_dim": "D",
    "mel_bins": "D",
    "frames": "T",
    "earlier": "T",
    "chunks": "M",
    "chunk": "T",
    "steps": "K",
}
