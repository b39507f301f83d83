"""Tiny files in the formats of the real data sets, so that a task can be run without them."""

import gzip
import io
import tarfile
import wave

import numpy as np


def idx(array):
    """An array of bytes in the format of MNIST."""
    header = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.astype("u1").tobytes()


def write_idx(folder, train=20, test=10):
    """The four files of MNIST; returns the arrays by the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    arrays = {}
    for prefix, size in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.randint(0, 256, (size, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(size) % 10
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return arrays


def write_all(root):
    """Every data set, in folders as below LINRNN_DATA."""
    write_idx(root / "mnist")
    write_idx(root / "fashion_mnist")
    write_table(root / "table")
    write_images(root / "images")
    write_sounds(root / "sounds")
    write_cifar(root / "cifar10" / "cifar-10-binary.tar.gz")
    write_ett(root / "ett" / "ETTh1.csv")
    write_imdb(root / "imdb" / "aclImdb_v1.tar.gz")
    write_audio(root)
    write_pairs(root / "retrieval")
    write_text(root / "tinyshakespeare" / "input.txt")
    write_published_texts(root)
    write_genome(root / "genomics" / "genome.fa", (700,))
    write_har(root / "har")
    write_ts_pair(root / "EigenWorms", "EigenWorms")
    write_ts_pair(root / "BIDMC32HR", "BIDMC32HR", regression=True)
    write_ett(root / "weather" / "weather.csv", 2000)
    write_patients(root / "sepsis")
    write_skeletons(root / "skeletons")
    write_timit(root / "timit")
    write_translations(root / "translation")


def write_table(folder):
    """Sequences of 1 to 4 steps of 2 numbers with a class each."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    rows = [[*rng.randn(2 * (1 + i % 4)).round(3), f"c{i % 2}"] for i in range(20)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (folder / "x.csv").write_text(text)


def write_images(folder, each=6, size=(4, 5), classes=("dark", "light")):
    """Grey images of two classes, which differ in brightness; returns their pixels by path."""
    from PIL import Image

    rng, found = np.random.RandomState(0), {}
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = (rng.randint(0, 90, size) + 150 * place).astype("u1")
            path = folder / name / f"{i}.png"
            Image.fromarray(pixels).save(path)
            found[path] = pixels
    return found


def write_sounds(folder, each=6, rate=8_000, classes=("low", "high")):
    """Clips of 30 to 40 samples; one class is louder. Returns their samples by path."""
    rng, found = np.random.RandomState(0), {}
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            samples = (rng.randn(30 + 2 * i) * (300 + 6000 * place)).astype("<i2")
            path = folder / name / f"{i}.wav"
            path.write_bytes(wav(samples, rate))
            found[path] = samples
    return found


def options(task, root):
    """Options that a task needs beside the folder of all data."""
    own = {
        "table": {"data": str(root / "table" / "x.csv"), "channels": 2},
        "speech_commands": {"length": 200},
        "spoken_digits": {"length": 200},
        "imdb": {"validation_size": 2},
        "sound": {"length": 8},
        "retrieval": {"length": 40},
        "path_x": {"train_size": 10, "validation_size": 10, "test_size": 10},
        "forecast": {"data": str(root / "ett" / "ETTh1.csv")},
        "images": {"data": str(root / "images")},
        "sounds": {"data": str(root / "sounds")},
        "ptb": {"check_counts": False},
        "wikitext": {"check_counts": False},
        "genomics": {"length": 8},
        "har": {"check_counts": False},
        "uea": {"check_counts": False},
        "bidmc": {"check_counts": False},
        "translation": {"vocabulary": 40},
        "speech_frames": {"check_counts": False},
        "skeletons": {"check_counts": False},
        "sepsis": {"check_counts": False, "hours": 12},
        "ltsf": {"check_counts": False},
        "pg19": {"check_counts": False, "length": 40},
        "enwik8": {"length": 40, "train_size": 900, "validation_size": 50, "test_size": 50},
    }
    return own.get(task, {})


def write_cifar(path, train=10, test=5):
    """The binary archive of CIFAR-10 with few images in each batch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    members = {}
    for name, size in [
        *((f"data_batch_{i}", train // 5) for i in range(1, 6)),
        ("test_batch", test),
    ]:
        records = rng.randint(0, 256, (size, 3073)).astype("u1")
        records[:, 0] = np.arange(size) % 10
        members[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    write_tar(path, members)


def write_tar(path, members):
    """An archive of files by their names; packed as its own name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_ett(path, steps=20 * 720):
    """Hourly rows in the format of ETTh1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.random.RandomState(0).randn(steps, 7).round(2)
    rows = "".join(f"2016-07-01,{','.join(map(str, row))}\n" for row in table.tolist())
    path.write_text(f"date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n{rows}")
    return table


def write_imdb(path, each=3):
    """An archive of reviews in the layout of the official one."""
    members = {"aclImdb/README": b"about", "aclImdb/train/unsup/0_0.txt": b"neither"}
    for split in ("test", "train"):
        for label in ("neg", "pos"):
            for i in range(each):
                text = f"{split} {label} {i} " + "é<br />" * i
                members[f"aclImdb/{split}/{label}/{i}_{1 + i}.txt"] = text.encode()
    write_tar(path, members)
    return members


def write_text(path, lines=300):
    """Some text in the place of Shakespeare's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"Line {i} of a text.\n" for i in range(lines)))


def write_published_texts(root):
    """Texts in the layouts of Penn Treebank, WikiText, enwik8, text8 and PG-19."""
    words = ["the", "of", "<unk>", "stock", "N", "market", "rose", "a", "fell"]
    rng = np.random.RandomState(0)

    def lines(n):
        return "".join(f" {' '.join(rng.choice(words, 1 + i % 7))} \n" for i in range(n))

    for place, n in (("train", 200), ("valid", 60), ("test", 80)):
        for folder, name in (("ptb", f"ptb.{place}.txt"), ("wikitext2", f"wiki.{place}.tokens")):
            (root / folder).mkdir(parents=True, exist_ok=True)
            text = lines(n) if place != "train" else f" {' '.join(words)} \n{lines(n)}"
            (root / folder / name).write_text(text)
    for part, books in (("train", 3), ("validation", 1), ("test", 2)):
        (root / "pg19" / part).mkdir(parents=True, exist_ok=True)
        for i in range(books):
            (root / "pg19" / part / f"{10 + i}.txt").write_text(lines(20 + i))
    for name, text in (("enwik8", "<page>Ünder 1</page>\n"), ("text8", " one two three")):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / name).write_text(text * 60)


def write_genome(path, bases=(400, 300)):
    """Random sequences in FASTA, 60 bases a line; returns them by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    sequences = {f"chr{i}": "".join(rng.choice(list("ACGTN"), n)) for i, n in enumerate(bases, 1)}
    lines = (
        "\n".join([f">{name}", *(s[i : i + 60].lower() for i in range(0, len(s), 60))])
        for name, s in sequences.items()
    )
    path.write_text("\n".join(lines))
    return sequences


def write_har(folder, windows=(30, 12)):
    """Windows in the layout of UCI HAR; returns signals, labels and persons by part."""
    import torch

    rng, parts = np.random.RandomState(0), {}
    for part, n in zip(("train", "test"), windows, strict=True):
        signals = folder / part / "Inertial Signals"
        signals.mkdir(parents=True)
        x = rng.randn(n, 128, 9).round(4)
        labels, persons = 1 + np.arange(n) % 6, 1 + np.arange(n) % 10
        names = [f"{k}_{a}" for k in ("body_acc", "body_gyro", "total_acc") for a in "xyz"]
        for channel, name in enumerate(names):
            np.savetxt(signals / f"{name}_{part}.txt", x[..., channel], fmt=" %.7e")
        for name, values in (("y", labels), ("subject", persons)):
            np.savetxt(folder / part / f"{name}_{part}.txt", values, fmt="%d")
        parts[part] = tuple(map(torch.from_numpy, (x.astype("f4"), labels, persons)))
    return parts


def write_ts_pair(folder, name, *, regression=False):
    """NAME_TRAIN.ts and NAME_TEST.ts; returns the sequences of both, and their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    x = np.random.RandomState(0).randn(30, 12, 3).round(4)
    y = [f"{60 + i * 1.5}" if regression else "ab"[i % 3 == 0] for i in range(30)]
    header = "@targetlabel true" if regression else "@classLabel true a b"
    for part, rows in (("TRAIN", range(18)), ("TEST", range(18, 30))):
        lines = [
            ":".join([*(",".join(map(str, channel)) for channel in x[i].T.tolist()), y[i]])
            for i in rows
        ]
        (folder / f"{name}_{part}.ts").write_text("\n".join([header, "@data", *lines]))
    return x, y


def skeleton(bodies):
    """The text of a .skeleton file of bodies (frames, 25, 3) by number, NaN where absent."""
    frames = len(next(iter(bodies.values())))
    lines = [str(frames)]
    for frame in range(frames):
        present = {name: x[frame] for name, x in bodies.items() if not np.isnan(x[frame]).any()}
        lines.append(str(len(present)))
        for name, joints in present.items():
            lines += [f"{name} 0 1 1 1 1 0 0.1 -0.2 2", "25"]
            lines += [f"{x:.7g} {y:.7g} {z:.7g} 1 2 3 4 0.5 0 0 0 2" for x, y, z in joints.tolist()]
    return "\n".join([*lines, ""])


def write_skeletons(folder, people=(1, 2, 3, 4, 6), cameras=(1, 2, 3), actions=(1, 2, 60)):
    """A recording of each person, camera and action, with one or two bodies; returns the joints."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, joints = np.random.RandomState(0), {}
    for person in people:
        for camera in cameras:
            for action in actions:
                frames = 8 + person
                bodies = {
                    7205759403793000 + n: rng.randn(frames, 25, 3) for n in range(1 + action % 2)
                }
                for n, x in enumerate(bodies.values()):
                    x += np.linspace(0, action * (1 + n), frames)[:, None, None]
                path = folder / f"S001C{camera:03d}P{person:03d}R001A{action:03d}.skeleton"
                path.write_text(skeleton(bodies))
                joints[path] = list(bodies.values())
    return joints


def write_translations(folder, sizes=(60, 12, 12), words=6):
    """Pairs of files of sentences, translated word by word; returns the pairs of each part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, parts = np.random.RandomState(0), {}
    for part, size in zip(("train", "valid", "test"), sizes, strict=True):
        rows = [rng.randint(0, words, 2 + rng.randint(5)) for _ in range(size)]
        pairs = [(" ".join(f"w{i}" for i in row), " ".join(f"v{i}" for i in row)) for row in rows]
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(text)
        parts[part] = pairs
    return parts


def sphere(samples, rate=16_000, order="01"):
    """A NIST sphere file of samples of 16 bits, least significant byte first for 01."""
    lines = [
        *("NIST_1A", "   1024", f"sample_count -i {len(samples)}", f"sample_rate -i {rate}"),
        *("channel_count -i 1", "sample_n_bytes -i 2", f"sample_byte_format -s2 {order}"),
        *("sample_sig_bits -i 16", "sample_coding -s3 pcm", "end_head", ""),
    ]
    header = "\n".join(lines).encode().ljust(1024)
    return header + samples.astype("<i2" if order == "01" else ">i2").tobytes()


SPEAKERS = (
    "TRAIN/DR1/FCJF0",
    "TRAIN/DR1/MDPK0",
    "TRAIN/DR2/FAEM0",
    "TEST/DR1/MDAB0",
    "TEST/DR2/FDHC9",
)


def write_timit(folder, speakers=SPEAKERS):
    """Two sentences of each speaker, and one that everybody reads; returns samples and phones."""
    rng, spoken = np.random.RandomState(0), {}
    for number, speaker in enumerate(speakers):
        for name in ("SI648", "SX37", "SA1"):
            phones = ["h#", *rng.choice(["iy", "ax-h", "s", "q", "tcl"], 4), "h#"]
            ends = np.cumsum(rng.randint(400, 1600, 6))
            spans = np.stack([[0, *ends[:-1]], ends], 1)
            time = np.arange(ends[-1] + 90)
            index = np.searchsorted(ends, time, side="right").clip(max=5)
            pitch = np.array([200 + 400 * (hash_of(phone) % 8) for phone in phones])[index]
            samples = 4000 * np.sin(2 * np.pi * pitch * time / 16_000) + 50 * rng.randn(len(time))
            samples = samples.astype("<i2")
            path = folder / speaker / f"{name}.PHN"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                "".join(f"{a} {b} {p}\n" for (a, b), p in zip(spans, phones, strict=True))
            )
            content = sphere(samples) if number % 2 else wav(samples, 16_000)
            path.with_suffix(".WAV").write_bytes(content)
            spoken[path] = (samples, spans, phones)
    return spoken


def hash_of(text):
    """A small number that is the same in every process."""
    return sum(map(ord, text))


PSV = (
    "HR|O2Sat|Temp|SBP|MAP|DBP|Resp|EtCO2|BaseExcess|HCO3|FiO2|pH|PaCO2|SaO2|AST|BUN|Alkalinephos|"
    "Calcium|Chloride|Creatinine|Bilirubin_direct|Glucose|Lactate|Magnesium|Phosphate|Potassium|"
    "Bilirubin_total|TroponinI|Hct|Hgb|PTT|WBC|Fibrinogen|Platelets|Age|Gender|Unit1|Unit2|"
    "HospAdmTime|ICULOS|SepsisLabel"
)


def write_patients(folder, count=40, septic=12):
    """Patients in two folders, whose heart beats faster with sepsis; returns rows by path."""
    rng, tables = np.random.RandomState(0), {}
    for i in range(count):
        hours = 5 + i % 7
        table = np.full((hours, 41), np.nan)
        table[:, 0] = (80 + 12 * (i < septic) + 20 * rng.randn(hours)).round(1)
        table[rng.rand(hours) < 0.3, 0] = np.nan
        table[::3, 31] = rng.rand(len(table[::3])).round(2)
        table[:, 34:39] = [50 + i, i % 2, *([1, 0] if i % 3 else [np.nan] * 2), -5.5]
        table[:, 39] = np.arange(1, hours + 1)
        table[:, 40] = (i < septic) * (np.arange(hours) > hours - 3)
        path = folder / f"training_set{'AB'[i % 2]}" / f"p{i:06d}.psv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = ["|".join("NaN" if np.isnan(v) else f"{v:g}" for v in row) for row in table]
        path.write_text("\n".join([PSV, *rows, ""]))
        tables[path] = table
    return tables


def write_pairs(folder, each=6, length=30):
    """The three files of Retrieval; of a pair that belongs together both texts say the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "eval", "test"):
        rows = []
        for i in range(each):
            first = f"{part} paper {i} " + "abc " * (i % 3) + "~" * length
            second = first if i % 2 else f"{part} other {i} é"
            rows.append(f"{i % 2}.0\tid{i}\tid{i + 1}\t{first}\t{second}\n")
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(rows), encoding="utf-8")


def wav(samples, rate=16_000, channels=1, width=2):
    """A clip as the bytes of a .wav."""
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(width)
        clip.setframerate(rate)
        clip.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def write_audio(root):
    """Archives of Speech Commands, with its lists, and of the spoken digits."""
    clips = {f"./{w}/{i}_nohash_0.wav": wav([i + 1] * 50) for w in ("yes", "bed") for i in range(5)}
    lists = {
        "./validation_list.txt": b"yes/1_nohash_0.wav\nbed/1_nohash_0.wav\n",
        "./testing_list.txt": b"yes/2_nohash_0.wav\nbed/3_nohash_0.wav\n",
        "./_background_noise_/noise.wav": wav([1] * 50),
    }
    write_tar(root / "speech_commands" / "speech_commands_v0.02.tar.gz", clips | lists)
    digits = {
        f"recordings/{d}_jo_{n}.wav": wav([100 * d + n] * (20 + n), 8000)
        for d in range(2)
        for n in (0, 4, 5, 9, 10)
    }
    write_tar(root / "fsdd" / "fsdd.tar.gz", digits)
