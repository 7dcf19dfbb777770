"""Train the textbook's PyTorch transformer to spell words backwards, with an ordinary training loop.

    python -m examples.toy_translation

The exit code is 0 if the model spells at least 99 % of 1000 new words without a mistake, else 1.
"""

import random
import sys
from collections.abc import Collection, Sequence

import torch
from examples.textbook.attention_is_all_you_need_pytorch import PAD, Transformer, padding_mask
from torch import Tensor
from torch.nn.functional import cross_entropy

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 4, 11
BOS, EOS, FIRST_LETTER = 1, 2, 3
HELD_OUT, NEEDED = 1000, 0.99

D_MODEL, STEPS, BATCH, LEARNING_RATE = 64, 1500, 64, 3e-3


def random_words(count: int, excluded: Collection[str] = ()) -> list[str]:
    """Return words of random letters and lengths, without the words in `excluded`."""
    words: list[str] = []
    while len(words) < count:
        word = "".join(random.choices(LETTERS, k=random.randint(SHORTEST, LONGEST)))
        if word not in excluded:
            words.append(word)
    return words


def tokens_of(words: Sequence[str]) -> Tensor:
    """Return `<bos>`, the letters and `<eos>` of every word, padded to the longest possible word."""
    rows = torch.full((len(words), LONGEST + 2), PAD)
    for row, word in zip(rows, words, strict=True):
        row[: len(word) + 2] = torch.tensor([BOS, *(FIRST_LETTER + LETTERS.index(letter) for letter in word), EOS])
    return rows


def words_of(rows: Tensor) -> list[str]:
    """Return the letters of every row between `<bos>` and `<eos>`, with `?` for other tokens."""
    words = []
    for _, *row in rows.tolist():
        letters = row[: row.index(EOS)] if EOS in row else row
        words.append("".join(LETTERS[token - FIRST_LETTER] if token >= FIRST_LETTER else "?" for token in letters))
    return words


def train(model: Transformer, held_out: Collection[str] = (), steps: int = STEPS) -> list[float]:
    """Train the model on words that are not in the test, and return the loss of each step."""
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    losses = []
    model.train()
    for step in range(1, steps + 1):
        words = random_words(BATCH, held_out)
        source, target = tokens_of(words), tokens_of([word[::-1] for word in words])
        logits = model(source, target[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 0:
            print(f"step {step:4}  loss {sum(losses[-100:]) / 100:.4f}")
    return losses


@torch.no_grad()
def translate(model: Transformer, words: Sequence[str]) -> list[str]:
    """Decode greedily: append the most likely token until every row has ended."""
    model.eval()
    source = tokens_of(words)
    memory, target = model.encode(source), torch.full((len(words), 1), BOS)
    for _ in range(LONGEST + 1):
        logits = model.decode(target, memory, padding_mask(source))
        target = torch.cat([target, logits[:, -1:].argmax(dim=-1)], dim=1)
    return words_of(target)


def accuracy(model: Transformer, words: Sequence[str]) -> float:
    """Return the share of the words without a mistake."""
    return sum(got == word[::-1] for got, word in zip(translate(model, words), words, strict=True)) / len(words)


def main() -> int:
    random.seed(1)
    torch.manual_seed(1)
    held_out = random_words(HELD_OUT)
    model = Transformer(FIRST_LETTER + len(LETTERS), D_MODEL, heads=4, d_ff=4 * D_MODEL, layers=2, dropout=0)
    train(model, set(held_out))
    for word, got in zip(held_out[:5], translate(model, held_out[:5]), strict=True):
        print(f"{word:{LONGEST}} → {got}")
    share = accuracy(model, held_out)
    print(f"{share:.1%} of {HELD_OUT} new words are spelled without a mistake.")
    return 0 if share >= NEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
