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
