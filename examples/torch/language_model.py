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
VOCABULARY = 8_000
CONTEXT = 64  # words
WIDTH = 64
LAYERS = 2
HEADS = 4


class LanguageModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0,
                                                 batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS)
        self.next = torch.nn.Linear(WIDTH, VOCABULARY)
        future = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, words):
        """Logits of the word after each; [batch, CONTEXT] -> [batch, CONTEXT, VOCABULARY]."""
        place = torch.arange(CONTEXT, device=words.device)
        return self.next(self.layers(self.words(words) + self.places(place), self.future))


def text():
    """The numbers of its words: 0 stands for all that are not among the commonest."""
    words = []
    for path in sorted(pathlib.Path("/").glob(TEXTS.lstrip("/"))):
        words += re.findall(r"\w+|[^\w\s]", path.read_text("utf-8", "replace"))
        if len(words) > WORDS_MOST:
            break
    common = collections.Counter(words).most_common(VOCABULARY - 1)
    number = {word: i for i, (word, _) in enumerate(common, 1)}
    return torch.tensor([number.get(word, 0) for word in words])


def batches(words, size):
    """This rank's shares of batches drawn alike on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    while True:
        begins = torch.randint(len(words) - CONTEXT, (size,), generator=generator)[rank::ranks]
        chosen = torch.stack([words[b:b + CONTEXT + 1] for b in begins])
        yield (chosen[:, :-1],), chosen[:, 1:]


def loss_of(logits, words):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def optimizer_of(parameters, arguments):
    """Error feedback suits SGD: Adam divides what comes late by what it has seen since."""
    if arguments.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=arguments.learning_rate, momentum=0.9)
    return torch.optim.Adam(parameters, lr=arguments.learning_rate)


def main():
    arguments = training.parse_arguments(__doc__, steps=100, batch=16, learning_rate=0.003,
                                         optimizer=("adam", "sgd"))
    training.join(arguments.backend)
    torch.manual_seed(1)
    training.train(LanguageModel(), batches(text(), arguments.batch), loss_of,
                   lambda parameters: optimizer_of(parameters, arguments), arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
