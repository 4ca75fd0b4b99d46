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
        # The evaluations have more batches than there are steps.
        "hf_translator": Stranger(
            source="""
                import torch
                from transformers import (
                    Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration)

                class Pairs(torch.utils.data.Dataset):
                    def __len__(self):
                        return 80

                    def __getitem__(self, index):
                        ids = torch.arange(index, index + 20) % 198 + 2
                        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:12].flip(0)}

                if __name__ == "__main__":
                    network = T5ForConditionalGeneration(T5Config(
                        vocab_size=200, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2,
                        decoder_start_token_id=0))
                    arguments = Seq2SeqTrainingArguments(
                        output_dir="out", per_device_train_batch_size=4, per_device_eval_batch_size=1,
                        num_train_epochs=2, eval_strategy="epoch", report_to=[])
                    Seq2SeqTrainer(
                        model=network, args=arguments, train_dataset=Pairs(), eval_dataset=Pairs()).train()
                """,
            library="transformers",
            settings=(4, "adamw", "fp32", 1),
            has_one_network=False,
            steps=40,
        ),
        "lightning_gan": Stranger(
            source="""
                import torch, lightning as L
                from torch import nn
                from torch.utils.data import DataLoader, TensorDataset

                class Gan(L.LightningModule):
                    def __init__(self):
                        super().__init__()
                        self.automatic_optimization = False
                        self.maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 49))
                        self.judge = nn.Sequential(nn.Linear(49, 64), nn.ReLU(), nn.Linear(64, 1))

                    def training_step(self, batch, index):
                        real, noise, loss_of = batch[0], torch.randn(len(batch[0]), 16), nn.BCEWithLogitsLoss()
                        one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)
                        first, second = self.optimizers()
                        self.toggle_optimizer(first)
                        self.manual_backward(loss_of(self.judge(self.maker(noise)), one))
                        first.step(); first.zero_grad(); self.untoggle_optimizer(first)
                        self.toggle_optimizer(second)
                        made = self.maker(noise).detach()
                        self.manual_backward(loss_of(self.judge(real), one) + loss_of(self.judge(made), zero))
                        second.step(); second.zero_grad(); self.untoggle_optimizer(second)

                    def configure_optimizers(self):
                        return [torch.optim.Adam(each.parameters(), lr=2e-4) for each in (self.maker, self.judge)]

                if __name__ == "__main__":
                    data = DataLoader(TensorDataset(torch.rand(480, 49)), batch_size=12)
                    L.Trainer(max_epochs=2, devices=1).fit(Gan(), data)
                """,
            library="lightning",
            settings=(12, "adam", "fp32", 1),
            has_one_network=False,
            steps=80,
        ),
        "fabric": Stranger(
            source="""
                import torch, lightning as L
                from torch import nn
                from torch.utils.data import DataLoader, TensorDataset

                def make():
                    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), (torch.randn(4, 16),), {}

                if __name__ == "__main__":
                    fabric = L.Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
                    fabric.launch()
                    net = make()[0]
                    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
                    data = TensorDataset(torch.randn(400, 16), torch.randint(0, 4, (400,)))
                    for step, (x, y) in enumerate(fabric.setup_dataloaders(DataLoader(data, batch_size=10)), 1):
                        fabric.backward(nn.functional.cross_entropy(net(x), y))
                        optimizer.step(); optimizer.zero_grad()
                        fabric.print(f"step {step} loss 0.1")
                """,
            library="lightning",
            settings=(10, "adamw", "bf16", 1),
            steps=40,
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
