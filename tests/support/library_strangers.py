"""More scripts of strangers: with Lightning, transformers or accelerate, and odd ways to start and to print.

The libraries are in an environment of their own, as those of users are: `python_for` says which.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import pytest

from tests.support.stranger import Stranger, conv

VARIABLE: str = "COTENANT_STRANGERS_PYTHON"
HOW = (
    f"set {VARIABLE} to a Python with them: python -m venv E; E/bin/pip install torch==2.13.0 (the CPU wheel), then "
    "E/bin/pip install lightning transformers accelerate"
)


@cache
def _has(python: str, library: str) -> bool:
    return subprocess.run([python, "-c", f"import {library}"], check=False, capture_output=True).returncode == 0


def python_for(stranger: Stranger) -> str:
    """Returns the Python that starts a script; skips the test where no environment has its library."""
    if not stranger.library:
        return sys.executable
    python = os.environ.get(VARIABLE, "")
    if not python or not _has(python, stranger.library):
        pytest.skip(f"no environment with {stranger.library}: {HOW}")
    return python


LIBRARY_STRANGERS: Mapping[str, Stranger] = MappingProxyType(
    {
        "lightning_encoder_decoder": Stranger(
            source="""
                import torch, lightning as L
                from torch import nn
                from torch.utils.data import DataLoader, TensorDataset

                class Auto(L.LightningModule):
                    def __init__(self):
                        super().__init__()
                        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
                        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

                    def forward(self, x):
                        return self.decoder(self.encoder(x))

                    def training_step(self, batch, index):
                        x = batch[0].view(batch[0].size(0), -1)
                        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
                        self.log("train_loss", loss, prog_bar=True)
                        return loss

                    def configure_optimizers(self):
                        return torch.optim.Adam(self.parameters(), lr=1e-3)

                def make():
                    return Auto(), (torch.randn(4, 64),), {}

                if __name__ == "__main__":
                    data = DataLoader(TensorDataset(torch.randn(800, 8, 8)), batch_size=16)
                    L.Trainer(max_epochs=2, accelerator="auto", devices=1).fit(Auto(), data)
                """,
            library="lightning",
            settings=(16, "adam", "fp32", 1),
            steps=100,
        ),
        "hf_trainer": Stranger(
            source="""
                import torch
                from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

                class Texts(torch.utils.data.Dataset):
                    def __len__(self):
                        return 320

                    def __getitem__(self, index):
                        ids = torch.arange(index, index + 24) % 200
                        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 2}

                def network():
                    return BertForSequenceClassification(BertConfig(
                        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=32))

                class Logits(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.net = network()

                    def forward(self, input_ids, attention_mask):
                        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits

                def make():
                    ids = torch.randint(0, 200, (4, 24))
                    return Logits(), (ids, torch.ones_like(ids)), {}

                if __name__ == "__main__":
                    arguments = TrainingArguments(
                        output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2,
                        num_train_epochs=3, logging_steps=10, report_to=[], dataloader_num_workers=1)
                    Trainer(model=network(), args=arguments, train_dataset=Texts()).train()
                """,
            library="transformers",
            settings=(16, "adamw", "fp32", 2),
            steps=60,
        ),
        "accelerated_loop": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    from accelerate import Accelerator
                    from torch.utils.data import DataLoader, TensorDataset
                    from tqdm.auto import tqdm
                    accelerator = Accelerator(gradient_accumulation_steps=2)
                    net = Net()
                    loader = DataLoader(TensorDataset(*images(480)), batch_size=12, shuffle=True)
                    net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
                    for epoch in range(2):
                        for x, y in tqdm(loader, desc=f"epoch {epoch}"):
                            with accelerator.accumulate(net):
                                accelerator.backward(nn.functional.cross_entropy(net(x), y))
                                optimizer.step(); optimizer.zero_grad()
                """
            ),
            library="accelerate",
            settings=(24, "adamw", "fp32", 2),
            steps=80,
        ),
        "variable_lengths": Stranger(
            source="""
                import random, torch
                from torch import nn

                class Tagger(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.table = nn.Embedding(100, 16)
                        self.cells = nn.GRU(16, 24, batch_first=True)
                        self.head = nn.Linear(24, 5)

                    def forward(self, ids):
                        return self.head(self.cells(self.table(ids))[0])

                def make():
                    return Tagger(), (torch.randint(0, 100, (4, 17)),), {}

                if __name__ == "__main__":
                    random.seed(3)
                    net = Tagger()
                    optimizer = torch.optim.AdamW(net.parameters())
                    for step in range(100):
                        ids = torch.randint(0, 100, (14, 17 if step < 2 else random.randint(4, 30)))
                        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten() % 5)
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                        if step % 25 == 0:
                            print("step", step, "loss", float(loss))
                """,
            settings=(14, "adamw", "fp32", 1),
            steps=100,
        ),
        "child_process": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    import subprocess, sys
                    if len(sys.argv) == 1:
                        sys.exit(subprocess.run([sys.executable, __file__, "train"]).returncode)
                    net = Net()
                    optimizer = torch.optim.Adam(net.parameters())
                    for iteration in range(1, 101):
                        x, y = images(10)
                        loss = nn.functional.cross_entropy(net(x), y)
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                        print(f"iteration {iteration}/100", flush=True)
                """
            ),
            settings=(10, "adam", "fp32", 1),
            steps=100,
        ),
        "buffered_prints": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
                    for it in range(100):
                        x, y = images(9)
                        loss = nn.functional.cross_entropy(net(x), y)
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                        print(f"it {it} loss {loss.item():.3f}")
                """
            ),
            settings=(9, "momentum", "fp32", 1),
            steps=100,
        ),
    }
)
