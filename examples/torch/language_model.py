#!/usr/bin/env python3
"""A small transformer that learns to continue the texts under /usr/share/doc, word by word. Most of
its gradient belongs to the embedding, of which a batch touches few rows.

    scripts/local-cluster --workers 4 -- /usr/bin/python3 examples/torch/language_model.py

To compress its gradients, add
--optimizer sgd --learning-rate 0.2 --hook top-k --ratio 0.08 --bf16-wire
"""
import collections
import pathlib
import re

import torch
import torch.distributed as dist

import training

TEXTS = "/usr/share/doc/*/copyright"
WORDS_MOST = 1_000_000  # of the texts
VOCABULARY = 8_000  # words
CONTEXT = 64  # words
WIDTH = 64
LAYERS = 2
HEADS = 4


class LanguageModel(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.words = torch.nn.Embedding(vocabulary, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0,
                                                 batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS)
        self.next = torch.nn.Linear(WIDTH, vocabulary)
        future = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, words):
        """Logits of the word after each; [batch, CONTEXT] -> [batch, CONTEXT, vocabulary]."""
        place = torch.arange(CONTEXT, device=words.device)
        return self.next(self.layers(self.words(words) + self.places(place), self.future))


def text(vocabulary):
    """The numbers of its words: 0 stands for all that are not among the commonest."""
    words = []
    for path in sorted(pathlib.Path("/").glob(TEXTS.lstrip("/"))):
        words += re.findall(r"\w+|[^\w\s]", path.read_text("utf-8", "replace"))
        if len(words) > WORDS_MOST:
            break
    common = collections.Counter(words).most_common(vocabulary - 1)
    number = {word: i for i, (word, _) in enumerate(common, 1)}
    return torch.tensor([number.get(word, 0) for word in words])


def batches(words, size, seed):
    """This rank's shares of batches drawn alike on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)
    while True:
        begins = torch.randint(len(words) - CONTEXT, (size,), generator=generator)[rank::ranks]
        chosen = torch.stack([words[b:b + CONTEXT + 1] for b in begins])
        yield (chosen[:, :-1],), chosen[:, 1:]


def loss_of(logits, words):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def optimizer_of(parameters, arguments):
    if arguments.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=arguments.learning_rate,
                               momentum=arguments.momentum)
    if arguments.optimizer == "delayed-adam":
        import sluice_contrib  # of contrib/torch, which PYTHONPATH must name

        return sluice_contrib.DelayedAdam(parameters, lr=arguments.learning_rate)
    if arguments.optimizer == "zero-one-adam":
        import sluice_torch

        return sluice_torch.ZeroOneAdam(parameters, lr=arguments.learning_rate)
    return torch.optim.Adam(parameters, lr=arguments.learning_rate,
                            betas=(arguments.momentum, 0.999))


def main():
    arguments = training.parse_arguments(__doc__, steps=100, batch=16, learning_rate=0.003,
                                         optimizer=("adam", "delayed-adam", "zero-one-adam", "sgd"),
                                         momentum=0.9, vocabulary=VOCABULARY)
    training.join(arguments.backend, arguments.meet)
    torch.manual_seed(arguments.seed)
    training.train(LanguageModel(arguments.vocabulary),
                   batches(text(arguments.vocabulary), arguments.batch, arguments.seed), loss_of,
                   lambda parameters: optimizer_of(parameters, arguments), arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
