"""Training scripts that look nothing like examples/, and what a capture of each must find.

Every script defines `make()`, the network with example arguments for an export by hand; those without one exportable
network do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.support.stranger import Stranger, conv

_PLAIN = conv(
    """
    if __name__ == "__main__":
        import argparse
        from torch.utils.data import DataLoader, TensorDataset
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch", type=int, default=12)
        net, (x, y) = Net(), images(120)
        optimizer = torch.optim.AdamW(net.parameters())
        open("left_behind.txt", "w").write("x")
        for step, (x, y) in enumerate(DataLoader(TensorDataset(x, y), batch_size=parser.parse_args().batch)):
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(f"step {step}: {loss.item():.3f}")
    """
)

STRANGERS: Mapping[str, Stranger] = MappingProxyType(
    {
        "plain": Stranger(source=_PLAIN, arguments=("--batch", "24"), settings=(24, "adamw", "fp32", 1)),
        "module": Stranger(source=_PLAIN, starts_with=("{python}", "-m", "{stem}"), settings=(12, "adamw", "fp32", 1)),
        "shell_wrapper": Stranger(
            source=_PLAIN,
            starts_with=("bash", "-c", "cd . && {python} {file} --batch 6; touch second_command"),
            settings=(6, "adamw", "fp32", 1),
        ),
        "accumulation_scaler": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    net = Net().cuda()
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
                    scaler = torch.amp.GradScaler("cuda")
                    for step in range(100):
                        for part in range(4):
                            x, y = images(8)
                            with torch.autocast("cuda", dtype=torch.float16):
                                loss = nn.functional.cross_entropy(net(x.to("cuda:0")), y.cuda()) / 4
                            scaler.scale(loss).backward()
                        scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
                """
            ),
            settings=(32, "momentum", "fp16", 4),
        ),
        "compiled_cuda": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    device = torch.device("cuda")
                    torch.cuda.set_device(0)
                    net = torch.compile(Net().to(device))
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                    for step in range(100):
                        x, y = torch.randn(16, 3, 16, 16, device=device), torch.randint(0, 10, (16,), device="cuda")
                        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                            loss = nn.functional.cross_entropy(net(x), y)
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                """
            ),
            settings=(16, "sgd", "bf16", 1),
        ),
        "workers": Stranger(
            source=conv(
                """
                from torch.utils.data import DataLoader, Dataset

                class Images(Dataset):
                    def __len__(self):
                        return 400

                    def __getitem__(self, index):
                        return torch.randn(3, 16, 16), index % 10

                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.Adam(net.parameters())
                    loader = DataLoader(Images(), 20, num_workers=2, multiprocessing_context="spawn", pin_memory=True)
                    for epoch in range(5):
                        for x, y in loader:
                            loss = nn.functional.cross_entropy(net(x.cuda(non_blocking=True)), y)
                            optimizer.zero_grad(); loss.backward(); optimizer.step()
                """
            ),
            settings=(20, "adam", "fp32", 1),
        ),
        "new_folder": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    import os
                    os.makedirs("runs/one", exist_ok=False)
                    net = Net()
                    optimizer = torch.optim.RMSprop(net.parameters())
                    try:
                        for step in range(100):
                            x, y = images(10)
                            loss = nn.functional.cross_entropy(net(x), y)
                            optimizer.zero_grad(); loss.backward(); optimizer.step()
                            torch.save(net.state_dict(), f"runs/one/{step}.pt")
                    finally:
                        torch.save(net.state_dict(), "runs/last.pt")
                """
            ),
            settings=(10, "momentum", "fp32", 1),
        ),
        "closure": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    net, (x, y) = Net(), images(14)
                    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=3)
                    def closure():
                        optimizer.zero_grad()
                        loss = nn.functional.cross_entropy(net(x), y)
                        loss.backward()
                        return loss
                    for step in range(100):
                        optimizer.step(closure)
                """
            ),
            settings=(14, "adam", "fp32", 1),
        ),
        "keyword_arguments": Stranger(
            source="""
                import torch
                from torch import nn

                class Output(dict):
                    __getattr__ = dict.__getitem__

                class Tagger(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.table = nn.Embedding(100, 16)
                        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
                        self.head = nn.Linear(16, 5)

                    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None):
                        mask = attention_mask == 0
                        logits = self.head(self.layer(self.table(input_ids), src_key_padding_mask=mask))
                        if labels is None:
                            return {"logits": logits}
                        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                        return {"loss": loss / num_items_in_batch.item(), "logits": logits}

                def make():
                    ids = torch.randint(0, 100, (4, 12))
                    return Tagger(), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

                if __name__ == "__main__":
                    net = Tagger()
                    optimizer = torch.optim.AdamW(net.parameters())
                    for step in range(100):
                        for part in range(2):
                            ids = torch.randint(0, 100, (8, 12))
                            net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids % 5,
                                num_items_in_batch=torch.tensor(192))["loss"].backward()
                        optimizer.step(); optimizer.zero_grad()
                """,
            settings=(16, "adamw", "fp32", 2),
        ),
        "encoder_decoder": Stranger(
            source="""
                import torch
                from torch import nn

                class Auto(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
                        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

                    def forward(self, x):
                        return self.decoder(self.encoder(x))

                    def training_step(self, x):
                        return nn.functional.mse_loss(self.decoder(self.encoder(x.view(x.size(0), -1))), x.flatten(1))

                def make():
                    return Auto(), (torch.randn(4, 64),), {}

                if __name__ == "__main__":
                    net = Auto()
                    optimizer = torch.optim.Adam(net.parameters())
                    for step in range(100):
                        for part in range(2):
                            net.training_step(torch.randn(9, 8, 8)).backward()
                        optimizer.step(); optimizer.zero_grad()
                """,
            settings=(18, "adam", "fp32", 2),
        ),
        "progress_bar": Stranger(
            source=conv(
                r"""
                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                    for step in range(100):
                        x, y = images(11)
                        loss = nn.functional.cross_entropy(net(x), y)
                        optimizer.zero_grad(); loss.backward()
                        print(f"\r{step + 1}/100 [{'#' * step}]", end="")
                        optimizer.step()
                """
            ),
            settings=(11, "sgd", "fp32", 1),
        ),
        "two_optimizers": Stranger(
            source="""
                import torch
                from torch import nn

                if __name__ == "__main__":
                    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
                    critic = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
                    first = torch.optim.Adam(critic.parameters())
                    second = torch.optim.Adam(generator.parameters())
                    judge = nn.BCEWithLogitsLoss()
                    for step in range(100):
                        real, fake = torch.randn(13, 20), generator(torch.randn(13, 8))
                        first.zero_grad()
                        loss = judge(critic(real), torch.ones(13, 1)) + judge(critic(fake.detach()), torch.zeros(13, 1))
                        loss.backward(); first.step()
                        second.zero_grad()
                        judge(critic(fake), torch.ones(13, 1)).backward(); second.step()
                """,
            settings=(13, "adam", "fp32", 1),
            has_one_network=False,
        ),
        "bare_parameters": Stranger(
            source="""
                import torch
                from torch import nn

                if __name__ == "__main__":
                    table, head = nn.Parameter(torch.randn(200, 16)), nn.Linear(16, 4)
                    optimizer = torch.optim.SGD([table, *head.parameters()], lr=0.1)
                    for step in range(100):
                        optimizer.zero_grad()
                        head(table[torch.randint(0, 200, (8,))]).sum().backward()
                        optimizer.step()
                """,
            refusal="less than 95 %",
        ),
        "no_model": Stranger(source="print(sum(range(10)))", refusal="without importing torch"),
        "broken": Stranger(source="import torch\nraise RuntimeError('no data at all')", refusal="failed (exit 1)"),
        "ignores_the_path": Stranger(
            source=_PLAIN, starts_with=("{python}", "-I", "{file}"), refusal="ignores PYTHONPATH"
        ),
        "shape_from_numbers": Stranger(
            source="""
                import torch
                from torch import nn

                class Net(nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.layer = nn.Linear(8, 8)

                    def forward(self, x):
                        return self.layer(x.reshape(7, 2, 8)).sum()

                def make():
                    return Net(), (torch.randn(7, 16),), {}

                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                    for step in range(100):
                        optimizer.zero_grad(); net(torch.randn(7, 16)).backward(); optimizer.step()
                """,
            settings=(7, "sgd", "fp32", 1),
        ),
        "step_in_backward": Stranger(
            source="""
                import torch
                from torch import nn

                def make():
                    layers = [layer for _ in range(20) for layer in (nn.Linear(24, 24), nn.ReLU())]
                    return nn.Sequential(*layers), (torch.randn(9, 24),), {}

                if __name__ == "__main__":
                    net, _, _ = make()
                    optimizers = {one: torch.optim.AdamW([one]) for one in net.parameters()}

                    def step(parameter):
                        optimizers[parameter].step(); optimizers[parameter].zero_grad()

                    for parameter in net.parameters():
                        parameter.register_post_accumulate_grad_hook(step)
                    for number in range(100):
                        net(torch.randn(9, 24)).square().mean().backward()
            """,
            settings=(9, "adamw", "fp32", 1),
        ),
        "single_samples": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    net = Net()
                    optimizer = torch.optim.NAdam(net.parameters())
                    for step in range(100):
                        for part in range(3):
                            x, y = images(1)
                            nn.functional.cross_entropy(net(x), y).backward()
                        optimizer.step(); optimizer.zero_grad()
                """
            ),
            settings=(3, "adam", "fp32", 3),
        ),
        "torchrun": Stranger(
            source=conv(
                """
                if __name__ == "__main__":
                    import os
                    import torch.distributed as dist
                    dist.init_process_group("nccl")
                    rank = int(os.environ["LOCAL_RANK"])
                    torch.cuda.set_device(rank)
                    net = nn.parallel.DistributedDataParallel(Net().cuda(rank), device_ids=[rank])
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                    for step in range(100):
                        x, y = images(8)
                        loss = nn.functional.cross_entropy(net(x.cuda(rank)), y.to(rank))
                        optimizer.zero_grad(); loss.backward(); optimizer.step()
                """
            ),
            starts_with=("{python}", "-m", "torch.distributed.run", "--nproc-per-node", "2", "{file}"),
            settings=(16, "sgd", "fp32", 1),
        ),
    }
)
