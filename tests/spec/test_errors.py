"""Every error in a spec is one sentence: the key, its value and what is allowed."""

import re

import pytest

from fedtilt import spec
from fedtilt.errors import InputError
from fedtilt.methods import term

ONE = '[[methods]]\npreset = "fedavg"\n'


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


WRONG_VALUES = [
    (["train.rounds=0"], r"train.rounds = 0 is not possible; give a whole number ≥ 1"),
    (["train.rounds=2.5"], r"train.rounds = 2.5 is not possible; give a whole number"),
    (["train.rounds=true"], r"train.rounds = True is not possible; give a whole number"),
    (["train.rounds=many"], r"train.rounds = 'many' is not possible; give a whole number"),
    (["train.participation=0"], r"train.participation = 0 is not possible; give a number in \(0, 1\]"),
    (["train.participation=1.1"], r"train.participation = 1.1 is not possible"),
    (["train.participation=nan"], r"train.participation = nan is not possible"),
    (["train.epochs=0"], r"train.epochs = 0 "),
    (["train.batch_size=0"], r"train.batch_size = 0 "),
    (["train.lr=0"], r"train.lr = 0 is not possible; give a finite number > 0"),
    (["train.lr=inf"], r"train.lr = inf "),
    (["train.lr_personal=0.005"], r"train.lr_personal has no effect: .*; set that of ditto or fedtilt instead"),
    (["train.eval_every=0"], r"train.eval_every = 0 "),
    (
        ["train.backend=fast"],
        r"train.backend = 'fast' is not possible; give one of auto, autograd, native, fused, stacked",
    ),
    (["train.workers=-1"], r"train.workers = -1 "),
    (["clients.validation=1"], r"clients.validation = 1 is not possible; give a number in \[0, 1\)"),
    (["clients.alpha=0"], r"clients.alpha = 0 "),
    (["clients.partition=shards"], r"clients.partition = 'shards' is not possible; give one of classes, dirichlet"),
    (["outliers.kind=flip"], r"outliers.kind = 'flip' is not possible; give one of none, corruptions, gaussian, flips"),
    (["outliers.rate=2"], r"outliers.rate = 2 "),
    (
        ["outliers.strength=1"],
        r"outliers.strength = 1.0 has no effect here; set outliers.kind = 'corruptions' or 'gaussian'",
    ),
    (["outliers.redraw=never"], r"outliers.redraw = 'never' is not possible; give one of round, once"),
    (["outliers.flip_to=far"], r"outliers.flip_to = 'far' is not possible; give one of client, any, nearest, pairs"),
    (
        ["outliers.flip_to=any", "outliers.pairs.3=5"],
        r"outliers.pairs = {'3': '5'} has no effect with outliers.flip_to",
    ),
    (["outliers.pairs=[3, 5]"], r"outliers.pairs = \[3, 5\] is not possible; give a table of class names"),
    (["outliers.kind=corruptions", "outliers.strength=2"], r"outliers.strength = 2.0 is not a share"),
    (["model.name=resnet"], r"model.name = 'resnet' is not possible; give one of logistic, mlp, cnn"),
    (["model.hidden=[8, 0]"], r"model.hidden = \[8, 0\] is not possible; give a list of whole numbers ≥ 1"),
    (["model.hidden=8"], r"model.hidden = 8 "),
    (["model.channels=[]"], r"model.channels = \[\] is not possible; give a list of one or more"),
    (["data.name=minst"], r"data.name = 'minst' is not possible; give one of digits, mnist"),
    (["data.file=/a.csv"], r"data.file = '/a.csv' needs data.target"),
    (["data.target=y"], r"data.target = 'y' needs data.file"),
    (["data.image_size=8"], r"data.image_size = 8 needs data.images; name the folder they are in"),
    (
        ["data.images=a", "data.image_size=0"],
        r"data.image_size = 0 is not possible; give a whole number ≥ 1, or a list",
    ),
    (["data.images=a", "data.image_channels=2"], r"data.image_channels = 2 is not possible; give 1, 3 or 4"),
    (["data.images=a", "data.leaf=b"], r"data.images and data.leaf are two data sets; keep one of them"),
    (["data.test_share=0.5"], r"data.test_share = 0.5 needs data.file or data.images; leave it out"),
    (
        ["data.file=/a.csv", "data.target=y", "data.client=site", "clients.partition=iid"],
        r"data.client = 'site' is ignored when clients.partition = 'iid'; ",
    ),
    (["data.schema=s.json"], r"data.schema = '.*s.json' needs data.file; name the table it is in"),
    (["data.file=https://example.org/a.csv"], r"data.file = 'https://example.org/a.csv' is a URL; download it first"),
    (["data.drop=['id']"], r"data.drop = \('id',\) needs data.file; name the table it is in"),
    (["data.drop=id"], r"data.drop = 'id' is not possible; give a list of columns of file, such as \[\"id\"\]"),
    (["data.test_share=1"], r"data.test_share = 1 "),
    (["seed=-1"], r"seed = -1 "),
    (["seeds=0"], r"seeds = 0 "),
    (["name=a/b"], r"name = 'a/b' is not possible; give a plain name"),
    (["device=gpu"], r"device = 'gpu' is not possible; give auto, cpu, cuda, cuda:N or cuda:all"),
    (["storage.checkpoint_seconds=-1"], r"storage.checkpoint_seconds = -1 "),
    (["methods.ditto.mu=-1"], r"method 'ditto': proximal: mu must be a number ≥ 0, got -1.0"),
    (["methods.ditto.mu=1e9"], r"mu = 1e\+09 of method 'ditto' with learning rate 0.002 diverges"),
    (["methods.ditto.personal={mu=1}"], r"personal of method 'ditto' is what its preset decides; leave it out"),
    (["methods.ditto.prox=x"], r"prox of method 'ditto' must be a number, got 'x'"),
    (["methods.ditto.aggregator=krumm"], r"unknown aggregator 'krumm' of method 'ditto'; choose one of"),
    (
        ["methods.ditto.aggregator=5"],
        r"aggregator of method 'ditto' must be a name, a table, a component or",
    ),
    (["methods.ditto.aggregator.q=1"], r"aggregator of method 'ditto' needs rule; choose one of tilted, mean"),
    (
        ["methods.ditto.aggregator=krum", "methods.ditto.aggregator.bad_share=0.5"],
        r"aggregator of method 'ditto': krum: bad_share must be a number ≥ 0 and < 0.5, got 0.5",
    ),
    (
        ["methods.ditto.aggregator=krum", "methods.ditto.aggregator.radius=1"],
        r"radius = 1 of aggregator of method 'ditto' is not a setting of 'krum', which has bad_share; leave it out",
    ),
    (
        ["methods.ditto.aggregator=tilted", "methods.ditto.aggregator.distance=l3"],
        r"aggregator of method 'ditto': tilted: unknown distance 'l3'; choose one of squared_l2, l2, l1",
    ),
    (
        ["methods.ditto.aggregator={rule='tilted', steps=[1]}"],
        r"aggregator of method 'ditto': tilted: steps are \(count ≥ 1, size > 0\), got \(1,\)",
    ),
    (
        ["methods.ditto.aggregator={rule='tilted', steps=[0, 1.0]}"],
        r"aggregator of method 'ditto': tilted: steps are \(count ≥ 1, size > 0\), got \(0, 1.0\)",
    ),
    (
        ["methods.ditto.aggregator={rule='tilted', q=nan}"],
        r"aggregator of method 'ditto': tilted: q must be a number, got nan",
    ),
    (["methods.ditto.before=['nmn']"], r"unknown before 'nmn' of method 'ditto'; choose one of clipping"),
    (["methods.ditto.before.0.size=3"], r"before.0.size is no setting of a step before the rule; there are 0 steps"),
    (["methods.ditto.local=last"], r"local of method 'ditto': local is a list of patterns, such as \['last'\]"),
    (
        ["methods.ditto.training=x"],
        r"unknown training 'x' of method 'ditto'; choose one of .*, or name your own as module:Class",
    ),
    (["methods.ditto.weighting=no:such"], r"weighting of method 'ditto' = 'no:such': there is no module 'no'; install"),
    (
        ["methods.ditto.weighting=fedtilt.methods.aggregators:Krum"],
        r"weighting of method 'ditto' = 'fedtilt.methods.aggregators:Krum' is not a class of Weighting; make it a sub",
    ),
    (["methods.ditto.objective={levels=5}"], r"objective of method 'ditto': tilted: levels are pairs"),
    (["methods.fedtilt.levels=5"], r"method 'fedtilt': tilted: levels are pairs"),
    (["methods.ditto.name=fedavg"], r"two methods are named 'fedavg'"),
    (
        ["methods.fedavg.alpha=1"],
        r"methods.fedavg.alpha = 1 is not a setting of preset 'fedavg', but of a component: write correction = {",
    ),
    (["methods.fedtilt.lam="], r"methods.fedtilt.lam is missing; preset 'fedtilt' needs tau and lam"),
    (
        ["methods.fedtilt.preset=fedtlt"],
        r"methods.fedtilt.preset = 'fedtlt' is not possible; give a method of `fedtilt methods`",
    ),
    (["train.round=5"], r"train.round = 5 is not a key of a spec; did you mean train.rounds\?"),
    (["rounds=5"], r"rounds = 5 is not a key of a spec; did you mean train.rounds\?"),
    (["train.tau=5"], r"train.tau = 5 is not a key of a spec; did you mean methods.NAME.tau\?"),
    (["train.zzz=5"], r"train.zzz = 5 is not a key of a spec; choose one of rounds, participation"),
    (
        ["methods.fedtilt.lamb=5"],
        r"methods.fedtilt.lamb = 5 is not a setting of preset 'fedtilt'; did you mean methods.fedtilt.lam\?",
    ),
    (["methods.krum.q=5"], r"'methods.krum.q=5' names an unknown method; the methods are fedavg, ditto, fedtilt"),
    (["training.rounds=5"], r"'training.rounds=5' names an unknown table; the tables are data, clients"),
    (["train=5"], r"'train=5' sets a whole table; set one of its keys"),
    (["methods=5"], r"'methods=5' sets a whole table"),
    (["train.rounds"], r"'train.rounds' is not KEY=VALUE; write for example --set train.rounds=5"),
    (["=5"], r"'=5' is not KEY=VALUE"),
]


ODD_NAMES = ["n" * 5000, "a\\nb", "a\\u0000", "\\u001b[2J", "\\u202efoo", "../up", "a\\\\b", "é" * 101]
NESTED = [
    f"a = {'[' * 100_000}",
    f"a = {'[' * 60}{']' * 60}",
    "".join(["a = ", "{a = " * 300, "1", "}" * 300]),
    f"{'a.' * 100_000}b = 1",
    "[train" + ' . "a"' * 100_000 + "]",
]


def error_message(make):
    with pytest.raises(InputError) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 250
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return text


@pytest.mark.parametrize(("overrides", "message"), WRONG_VALUES)
def test_a_wrong_value_is_one_error_message(overrides, message):
    assert re.match(f"(--set )?{message}", error_message(lambda: spec.load("digits", overrides=overrides)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = \n" + ONE, "mine.toml is not valid TOML: line 1, column 8: invalid value; fix it there"),
        ("[train", "is not valid TOML: end of document"),
        ("seed = 1\nseed = 2\n", "is not valid TOML: line 2"),
        ("seed = 1\n", "methods is empty; add [[methods]]"),
        ("train = 5\n" + ONE, "train = 5 is not a table; write [train]"),
        ('[methods]\npreset = "fedavg"\n', "is not a list of tables; write [[methods]]"),
        ("methods = [1]\n", "methods = [1] is not a list of tables"),
        ("[[methods]]\ntau = 1\n", 'a method needs preset or name, such as preset = "fedavg"'),
        ("[[methods]]\npreset = 5\n", "methods.5.preset = 5 is not possible; give a method of"),
        (
            ONE + "tua = 1\n",
            "methods.fedavg.tua = 1 is not a setting of preset 'fedavg', which takes objective, personal, ",
        ),
        (ONE + ONE, "two methods are named 'fedavg'; give one of them another name="),
        ("[trian]\nrounds = 5\n" + ONE, "trian = {'rounds': 5} is not a key of a spec; did you mean train?"),
        ("[train]\nround = 5\n" + ONE, "train.round = 5 is not a key of a spec; did you mean train.rounds?"),
        ("name = 2026-01-01\n" + ONE, "name = datetime.date(2026, 1, 1) is not possible; give a plain name"),
        (
            '[[methods]]\npreset = "fedavg"\nname = "a/b"\n',
            "a method's name is a short word without slashes, control characters or a leading dot, got 'a/b'",
        ),
        *(
            (f'[[methods]]\npreset = "fedavg"\nname = "{name}"\n', "a method's name is a short word")
            for name in ODD_NAMES
        ),
        *((f'name = "{name}"\n{ONE}', "is not possible; give a plain name") for name in ODD_NAMES),
        *((f"{text}\n{ONE}", "mine.toml is nested too deeply; remove what") for text in NESTED),
    ],
)
def test_a_wrong_file_is_one_error_message(text, message, file):
    assert message in error_message(lambda: spec.load(file(text)))


def test_an_override_that_is_nested_too_deeply():
    message = error_message(lambda: spec.load("digits", overrides=["train.rounds=" + "[" * 100_000]))
    assert message.endswith("… is nested too deeply; give a plain value")


def test_a_missing_file_and_one_that_is_not_text(tmp_path):
    assert "did you mean digits?" in error_message(lambda: spec.load("digit"))
    assert "`fedtilt init` writes an example" in error_message(lambda: spec.load(tmp_path / "no.toml"))
    assert "cannot be read: Is a directory" in error_message(lambda: spec.load(tmp_path))
    (tmp_path / "a.csv").write_bytes(b"age;ill\n1;\xe9\n")
    message = error_message(lambda: spec.load(tmp_path / "a.csv"))
    assert (
        f"a.csv is a table; `fedtilt init mine.toml --table {tmp_path / 'a.csv'} --target COLUMN` writes a" in message
    )
    (tmp_path / "bad.toml").write_bytes(b"a = '\xff'")
    assert "is not UTF-8 text (byte 5)" in error_message(lambda: spec.load(tmp_path / "bad.toml"))


def test_a_method_that_cannot_be_added_is_one_error_message():
    message = error_message(lambda: spec.load("digits", methods=["scafold"]))
    assert message == (
        "method 'scafold' is neither in the spec (it has fedavg, ditto, fedtilt) nor a preset; did you mean scaffold?"
    )
    message = error_message(lambda: spec.load("digits", methods=["nothing"]))
    assert message.endswith("fedtilt methods lists those that can be added")
    assert error_message(lambda: spec.load("digits", methods=["term"])) == (
        "methods.term.t is missing; preset 'term' needs t"
    )
    assert spec.load("digits", methods=["term"], overrides=["methods.term.t=2"]).methods[0].to_method() == term(2.0)


COMPONENT_SETTINGS = [  # what is not a key of a method, what else it has, and how it is written
    ("tau = 2", "", 'objective = { rule = "tilted", tau = 2 }'),
    ("utility = 4.0", "", 'objective = { rule = "propfair", utility = 4.0 }'),
    ("mu = 0.1", "", 'personal = { rule = "proximal", mu = 0.1 }'),
    ("bad_share = 0.2", 'aggregator = "krum"', 'aggregator = { rule = "krum", bad_share = 0.2 }'),
    ("size = 3", "", 'before = [{ rule = "bucketing", size = 3 }]'),
]


@pytest.mark.parametrize(("pair", "beside", "component"), COMPONENT_SETTINGS)
def test_a_setting_of_a_component_names_the_component(pair, beside, component, file):
    message = error_message(lambda: spec.load(file(f'[[methods]]\nname = "a"\n{beside}\n{pair}\n')))
    assert message == (f"methods.a.{pair} is not a setting of preset 'custom', but of a component: write {component}")
    method = spec.load(file(f'[[methods]]\nname = "a"\n{component}\n')).methods[0].to_method()
    assert list(method.to_table()) == [component.partition(" ")[0]]
    if not beside:
        override = "methods.a." + pair.replace(" = ", "=", 1)
        assert error_message(lambda: spec.load(file('[[methods]]\nname = "a"\n'), overrides=[override])) == message
