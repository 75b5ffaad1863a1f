#!/usr/bin/env python3
"""To which section does a Debian package belong? A linear classifier of its description's words and
pairs of words, hashed: nn.EmbeddingBag(sparse=True), whose gradients name the few rows that a batch
touches; with --dense-gradients EmbeddingBag's default, a gradient of the whole table, of which
hardly a block is not zero. The data is what `apt-cache dumpavail` tells.

    scripts/local-cluster --workers 4 -- /usr/bin/python3 examples/torch/section_classifier.py
"""
import collections
import re
import subprocess
import zlib

import torch
import torch.distributed as dist

import training

ROWS = 1 << 20  # of the table, by default: words are hashed
SECTIONS = 64


def packages():
    """(section, description) of each, in the order in which they are told, which is the same on all
    ranks of a machine."""
    text = subprocess.run(["apt-cache", "dumpavail"], check=True, stdout=subprocess.PIPE).stdout
    found = {}
    for paragraph in text.decode("utf-8", "replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Section|Description): (.+)$", paragraph, re.MULTILINE))
        if len(fields) == 3:
            found.setdefault(fields["Package"],
                             (fields["Section"].rpartition("/")[2], fields["Description"]))
    return [found[name] for name in sorted(found)]


def features_of(description, rows):
    words = re.findall(r"[a-z0-9]+", description.lower())
    pairs = [" ".join(pair) for pair in zip(words, words[1:])]
    return sorted({zlib.crc32(text.encode()) % rows for text in ["", *words, *pairs]})


def examples(rows):
    """[(features, section number)], and the number of sections."""
    told = packages()
    common = [s for s, _ in collections.Counter(s for s, _ in told).most_common(SECTIONS)]
    number = {section: i for i, section in enumerate(common)}
    return [(features_of(text, rows), number[s]) for s, text in told if s in number]


def bagged(chosen):
    """As EmbeddingBag takes them: all features one after the other, and where each bag begins."""
    features, begins = [], []
    for bag, _ in chosen:
        begins.append(len(features))
        features += bag
    return ((torch.tensor(features), torch.tensor(begins)),
            torch.tensor([section for _, section in chosen]))


def batches(data, size, seed):
    """This rank's shares of batches drawn alike on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(data), (size,), generator=generator).tolist()
        yield bagged([data[i] for i in chosen[rank::ranks]])


def accuracy(model, data):
    with torch.no_grad():
        (features, begins), sections = bagged(data)
        return float((model(features, begins).argmax(1) == sections).float().mean())


def main():
    arguments = training.parse_arguments(__doc__, steps=200, batch=512, learning_rate=30.0,
                                         dense_gradients=False, rows=ROWS)
    training.join(arguments.backend, arguments.meet)
    data = examples(arguments.rows)
    held_out, trained = data[::10], [x for i, x in enumerate(data) if i % 10]
    model = torch.nn.EmbeddingBag(arguments.rows, SECTIONS, mode="mean",
                                  sparse=not arguments.dense_gradients)
    torch.nn.init.zeros_(model.weight)
    training.train(
        model, batches(trained, arguments.batch, arguments.seed), torch.nn.functional.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=arguments.learning_rate), arguments)
    if dist.get_rank() == 0:
        print(f"held-out accuracy {100 * accuracy(model, held_out):.1f} % of {len(held_out)}"
              " packages")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
