"""Scripts that ask their library for a GPU, or for what only a GPU does; they are captured where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.support.stranger import Stranger, conv

GPU_STRANGERS: Mapping[str, Stranger] = MappingProxyType(
    {
        "lightning_on_a_gpu": Stranger(
            source=conv(
                """
                import lightning as L
                from torch.utils.data import DataLoader, TensorDataset

                class Training(L.LightningModule):
                    def __init__(self):
                        super().__init__()
                        self.net = Net()

                    def forward(self, x):
                        return self.net(x)

                    def training_step(self, batch, index):
                        return nn.functional.cross_entropy(self(batch[0]), batch[1])

                    def configure_optimizers(self):
                        return torch.optim.AdamW(self.parameters(), lr=1e-3)

                if __name__ == "__main__":
                    data = DataLoader(TensorDataset(*images(320)), batch_size=16)
                    trainer = L.Trainer(
                        max_epochs=2, accelerator="gpu", devices=1, precision="16-mixed", accumulate_grad_batches=2)
                    trainer.fit(Training(), data)
                """
            ),
            library="lightning",
            settings=(32, "adamw", "fp16", 2),
            has_one_network=False,
        ),
        "hf_trainer_in_bf16": Stranger(
            source="""
                import torch
                from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

                class Texts(torch.utils.data.Dataset):
                    def __len__(self):
                        return 320

                    def __getitem__(self, index):
                        ids = torch.arange(index, index + 24) % 200
                        return {"input_ids": ids, "labels": ids}

                if __name__ == "__main__":
                    sizes = GPT2Config(vocab_size=200, n_embd=32, n_layer=1, n_head=2, n_positions=32)
                    network = GPT2LMHeadModel(sizes)
                    arguments = TrainingArguments(
                        output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=True,
                        tf32=True, report_to=[])
                    Trainer(model=network, args=arguments, train_dataset=Texts()).train()
                """,
            library="transformers",
            settings=(16, "adamw", "bf16", 2),
            has_one_network=False,
        ),
        # As many begin: no GPU, no training.
        "ends_without_a_gpu": Stranger(
            source=conv(
                """
                if torch.cuda.is_available():
                    device = torch.device("cuda", torch.cuda.device_count() - 1)
                else:
                    raise SystemExit("this needs a GPU")
                net = Net().to(device)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for step in range(100):
                    x, y = (each.to(device) for each in images(9))
                    nn.functional.cross_entropy(net(x), y).backward()
                    optimizer.step(); optimizer.zero_grad()
                """
            ),
            settings=(9, "sgd", "fp32", 1),
            has_one_network=False,
        ),
        # Its mask is code, and on a CPU it has no gradients.
        "flexible_attention": Stranger(
            source="""
                import torch
                from torch import nn
                from torch.nn.attention.flex_attention import create_block_mask, flex_attention

                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.words, self.parts, self.head = nn.Embedding(90, 32), nn.Linear(32, 96), nn.Linear(32, 90)

                    def forward(self, words, mask):
                        parts = self.parts(self.words(words)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
                        return self.head(flex_attention(*parts, block_mask=mask).transpose(1, 2).flatten(2))

                net = Net().cuda()
                mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")
                optimizer = torch.optim.AdamW(net.parameters())
                for step in range(100):
                    words = torch.randint(0, 90, (6, 128), device="cuda")
                    nn.functional.cross_entropy(net(words, mask).flatten(0, 1), words.flatten()).backward()
                    optimizer.step(); optimizer.zero_grad()
                """,
            settings=(6, "adamw", "fp32", 1),
            has_one_network=False,
        ),
        # What does not learn is kept in half precision, so that the network takes narrow inputs.
        "accelerated_fp16": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    from accelerate import Accelerator
                    accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="fp16")
                    encoder = nn.Conv2d(3, 3, 3, padding=1).requires_grad_(False).to(accelerator.device, torch.float16)
                    net = Net()
                    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
                    for step in range(100):
                        with accelerator.accumulate(net):
                            x, y = images(4)
                            accelerator.backward(nn.functional.cross_entropy(net(encoder(x.half())).float(), y))
                            if accelerator.sync_gradients:
                                accelerator.clip_grad_norm_(net.parameters(), 1.0)
                            optimizer.step(); optimizer.zero_grad()
                """
            ),
            library="accelerate",
            settings=(16, "adamw", "fp16", 4),
            has_one_network=False,
        ),
    }
)
