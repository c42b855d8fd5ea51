"""Tables as they come: every way of writing them gives the same source, and what was done is said."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fairlead.core.errors import DataError, InputError
from fairlead.data import Scenario, load
from fairlead.data.columns import Overrule, code, find
from fairlead.data.files import clean, owner_names, read_frame, table_files
from fairlead.data.source import Source
from fairlead.data.tables import Reading, columns_of, owner_values, read_table

PLAIN = "age,weight,smoker,ill\n40,71.5,yes,1\n50,80.25,no,0\n60,,yes,1\n70,95,no,0\n"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def roles(source: Source) -> dict[str, str]:
    return {column.name: column.role for column in source.table.columns}


def column(source: Source, name: str) -> list[float]:
    """One column's codes."""
    kept = [c.name for c in source.table.columns if c.kept]
    return source.raw[:, kept.index(name)].tolist()


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.csv", PLAIN, "utf-8"),
        ("a.csv", "\ufeff" + PLAIN, "utf-8"),
        ("a.csv", PLAIN, "utf-16"),
        ("a.csv", PLAIN, "utf-16-le"),
        ("a.csv", PLAIN.replace("\n", "\r\n"), "latin-1"),
        ("a.csv", PLAIN.replace("\n", "\r"), "utf-8"),
        ("a.tsv", PLAIN.replace(",", "\t"), "utf-8"),
        ("a.txt", PLAIN.replace(",", "|"), "utf-8"),
        ("a.csv", PLAIN.replace(",", ";").replace(".", ","), "utf-8"),
        ("a.csv", PLAIN.replace(",", ";"), "utf-8"),
        ("a.csv", PLAIN.replace(",", ", "), "utf-8"),
        ("a.data", PLAIN.replace(",,", ",?,").replace(",", "   "), "utf-8"),
        ("a.data", "age weight\tsmoker ill\n" + PLAIN[21:].replace(",,", ",NA,").replace(",", "  \t"), "utf-8"),
        ("a.dat", PLAIN.replace(",,", ',"",').replace("yes", '"yes"').replace(",", " "), "utf-8"),
        ("a.csv", PLAIN.replace("71.5", '"71,5"').replace("80.25", '"80,25"'), "utf-8"),
        ("a.csv", PLAIN.replace("60,,", "60,NA,").replace("50,80.25,no", "50,80.25,NO "), "utf-8"),
        ("a.csv", PLAIN.replace("60,,", "60, ? ,"), "utf-8"),
        ("a.csv", PLAIN.replace("\n", ",\n"), "utf-8"),
        ("a.csv", "age,weight,smoker,ill\n" + "".join(f"r{i},{r}\n" for i, r in enumerate(PLAIN.split()[1:])), "utf-8"),
    ],
)
def test_every_way_of_writing_gives_the_same(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    source = load(write(tmp_path / name, text, encoding), label="ill", drop=("row",) if "r0" in text else ())
    assert np.array_equal(column(source, "age"), [40, 50, 60, 70])
    assert np.array_equal(column(source, "weight"), [71.5, 80.25, np.nan, 95], equal_nan=True)
    assert column(source, "smoker") == [1, 0, 1, 0]
    assert source.y.tolist() == [1, 0, 1, 0]
    assert source.classes == ("0", "1")


def test_a_comma_between_thousands_is_told_from_a_decimal_mark_by_the_other_columns(tmp_path: Path) -> None:
    cells = "fee\tratio\n1,250\t1.5\n950\t2\n12,000\t0.25\n"
    assert read_frame([write(tmp_path / "a.tsv", cells)])["fee"].tolist() == [1250, 950, 12000]
    german = read_frame([write(tmp_path / "b.csv", "kg;share\n1,250;0,5\n0,950;1\n12,000;3\n")])
    assert german["kg"].tolist() == [1.25, 0.95, 12]
    assert german["share"].tolist() == [0.5, 1, 3]


def test_excel_parquet_and_gzip_give_the_same(tmp_path: Path) -> None:
    frame = pd.read_csv(io.StringIO(PLAIN))
    frame["born"] = pd.to_datetime(["1980-01-02", "1970-05-06", None, "1950-07-08"])
    frame.to_excel(tmp_path / "a.xlsx", index=False, startrow=2)
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    sources = [load(tmp_path / name, label="ill") for name in ("a.xlsx", "a.parquet", "a.csv.gz")]
    assert [source.name for source in sources] == ["a", "a", "a"]
    for source in sources:
        assert roles(source)["born"] == "date"
        assert torch.equal(source.raw.nan_to_num(-9), sources[0].raw.nan_to_num(-9))
    assert column(sources[0], "born")[0] == 3653  # days from 1970 to 2 January 1980


def test_of_a_workbook_the_sheet_with_the_columns_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    """A title above the names, a sheet about the table, one that looks like it, and one that nobody sees."""
    frame = pd.read_csv(io.StringIO(PLAIN))
    with pd.ExcelWriter(tmp_path / "a.xlsx") as book:
        pd.DataFrame({"Column": ["age", "ill"], "Meaning": ["in years", "in 2020"]}).to_excel(book, sheet_name="About")
        frame.to_excel(book, sheet_name="2020", index=False, startrow=3, startcol=1)
        book.sheets["2020"].cell(1, 1, "Export of 1 May")
        frame.head(2).to_excel(book, sheet_name="2021", index=False)
        frame.to_excel(book, sheet_name="old", index=False)
        book.sheets["old"].sheet_state = "hidden"
    source = load(tmp_path / "a.xlsx", label="ill")
    assert source.table is not None
    assert column(source, "age") == [40, 50, 60, 70]
    assert source.table.notes[0] == "a.xlsx: sheet '2020' is read, and not 'About', '2021'"
    frame.to_excel(tmp_path / "b.xlsx", index=False)
    both = load(f"{tmp_path}/a.xlsx,{tmp_path}/b.xlsx", label="ill")
    assert both.table is not None
    assert [note for note in both.table.notes if "sheet" in note] == list(source.table.notes[:1])


def test_one_file_per_owner_with_columns_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "clinic_north_2020.csv", "age;ill;BMI\n40;yes;21,5\n41;no;22\n")
    write(tmp_path / "clinic_south_2020.csv", "ill,age,extra\nYES,50,7\nno ,51,9\n")
    for data in (str(tmp_path), f"{tmp_path}/clinic*.csv", ",".join(str(p) for p in sorted(tmp_path.iterdir()))):
        source = load(data, label="ill")
        assert source.columns["owner"].tolist() == ["north", "north", "south", "south"]
        assert column(source, "age") == [40, 41, 50, 51]
        assert np.array_equal(column(source, "BMI"), [21.5, 22, np.nan, np.nan], equal_nan=True)
        assert source.y.tolist() == [1, 0, 1, 0]
        assert source.classes == ("no", "yes")
    federation = Scenario(data=str(tmp_path), label="ill", split="column", clients=None).build(0)
    assert federation.names == ("north", "south")


def test_owners_that_are_numbered_come_in_their_order(tmp_path: Path) -> None:
    for k in (1, 2, 10):
        write(tmp_path / f"site-{k}.csv", "x,label\n" + "1,0\n2,1\n3,0\n5,1\n")
    federation = Scenario(data=str(tmp_path), split="column", clients=None).build(0)
    assert federation.names == ("1", "2", "10")


def test_owner_names() -> None:
    files = [Path(name) for name in ("site-1.csv", "site-12.csv", "site-2.csv")]
    assert owner_names(files) == ["1", "12", "2"]
    assert owner_names([Path("north.csv"), Path("south.csv.gz")]) == ["north", "south"]
    with pytest.raises(InputError, match="two files have one name"):
        owner_names([Path("a/x.csv"), Path("b/x.csv")])


def test_files_without_a_header(tmp_path: Path) -> None:
    write(tmp_path / "a.data", "63.0,1,?,2\n37.0,0,1.5,0\n41.0,0,,1\n")
    source = load(tmp_path / "a.data", label="c4", positive=">0")
    assert [c.name for c in source.table.columns] == ["c1", "c2", "c3", "c4"]
    assert source.y.tolist() == [1, 0, 1]
    assert source.classes == ("not >0", ">0")
    words = load(write(tmp_path / "mushroom.data", "p,x\ne,b\ne,x\n"), label="c1")
    assert words.classes == ("e", "p")
    assert len(words) == 3
    years = load(write(tmp_path / "years.csv", "2001,2002,label\n1,2,0\n3,4,1\n"))
    assert [c.name for c in years.table.columns] == ["2001", "2002", "label"]


@pytest.mark.parametrize(
    ("positive", "expected"),
    [(">1", [0, 0, 1]), ("<= 1", [1, 1, 0]), ("=1", [0, 1, 0]), ("2|0", [1, 0, 1]), ("!=2", [1, 1, 0])],
)
def test_positive(tmp_path: Path, positive: str, expected: list[int]) -> None:
    file = write(tmp_path / "a.csv", "age,label\n1,0\n5,1\n3,2\n")
    assert load(file, positive=positive).y.tolist() == expected
    with pytest.raises(InputError, match="for all rows or for none"):
        load(file, positive=">7")
    with pytest.raises(InputError, match="positive '7' is no value"):
        load(file, positive="7")


@pytest.mark.parametrize(
    ("cells", "role"),
    [
        ([1.5, 2, None, 4], "number"),
        (["1,5", "2", "?", "4,25"], "number"),
        ([0, 1, 1, None], "yes/no"),
        (["yes", "NO", "yes ", "n/a"], "yes/no"),
        (["yes", "0", "no", "1"], "yes/no"),
        ([True, False, True, True], "yes/no"),
        (["12.5%", "7 %", None, "100%"], "number"),
        (["$1,250", "€ 7", None, "12 €"], "number"),
        (["m", "f", "m", "x"], "words"),
        (["2020-01-02", "2020-02-03", "", "2021-12-31"], "date"),
        (["31.12.2020", "01.02.2020", "", "2.3.2021"], "date"),
        (["12/31/2020", "01/13/2020", "", "2/3/2021"], "date"),
        (["2020-01-02T10:00:00", "2020-02-03 11:30", "", "2021-12-31"], "date"),
        (["Jan 1 2000", "Feb 12 2000", "", "Dec 3 2001"], "date"),
        (["January 1, 2000", "February 12, 2000", "", "March 3, 2001"], "date"),
        (["12/31/07", "1/13/07", "", "2/3/08"], "date"),
        (["12/31/2007 3:45 PM", "1/13/2007 11:05 AM", "", "2/3/2008 1:00 AM"], "date"),
        ([20200131, 20191231, None, 20200229], "date"),
        ([20200131, 20191231, None, 20200230], "number"),
        (["1-2-3", "20-30-40", "7-99-8", "5-5-5"], "words"),
        ([5, 5, 5, 5], "constant"),
        ([float("inf")] * 4, "constant"),
        ([None, None, None, None], "empty"),
        (["?", "-", "NA", ""], "empty"),
        (["train", "test", "train", "train"], "part"),
        ([[1], [2], [3], [4]], "unused"),
    ],
)
def test_roles(cells: Any, role: str) -> None:
    assert find("x", clean(pd.Series(cells, dtype=object).infer_objects())).role == role


def test_a_unit_behind_every_number_is_taken_off() -> None:
    weights = clean(pd.Series([*(f"{50 + i}.5 kg" for i in range(12)), "60 KG", None], dtype=object))
    found = find("weight", weights)
    assert (found.role, found.why, found.form) == ("number", "numbers in kg, such as 50.5 kg", "kg")
    assert np.array_equal(code(found, weights)[[0, 12, 13]], [50.5, 60, np.nan], equal_nan=True)
    assert code(found, clean(pd.Series(["71 kg", "72"], dtype=object))).tolist() == [71, 72]
    assert np.isnan(code(found, pd.Series(["150 lb"]))).all()
    for cells in ([f"{i % 12} {'kg' if i % 2 else 'lb'}" for i in range(30)], ["1st", "2nd"] * 9, ["36 months"] * 9):
        assert find("x", clean(pd.Series([*cells, "60 months"], dtype=object))).role == "words"
    assert find("ward", clean(pd.Series([f"{1001 + i}A" for i in range(30)], dtype=object))).role == "id"


def test_numbers_among_many_words_are_said() -> None:
    limits = clean(pd.Series(["<5", "<5", *(str(5 + i / 10) for i in range(10))], dtype=object))
    found = find("crp", limits)
    assert (found.role, found.why) == (
        "words",
        "words, but 10 of 12 are numbers: --numeric takes the others for empty",
    )
    assert find("crp", limits, said=Overrule(numeric=("crp",))).missing == 2


def test_how_a_date_is_read_is_said() -> None:
    def read(*cells: Any) -> tuple[str, list[float]]:
        column = clean(pd.Series(cells, dtype=object).infer_objects())
        found = find("d", column)
        return found.why, code(found, column).tolist()

    assert read("1/13/70", "2/3/70") == ("dates, such as 1/13/70 (1970-01-13)", [12, 33])
    assert read("1/2/1970", "1/3/1970") == (
        "dates, such as 1/2/1970 (1970-02-01); no cell tells the day from the month: the day is taken to come first",
        [31, 59],
    )
    assert read("1.2.1970", "1.3.1970") == ("dates, such as 1.2.1970 (1970-02-01)", [31, 59])
    assert read("Jan 1 1970", "Jan 2 1970") == ("dates, such as Jan 1 1970 (1970-01-01)", [0, 1])
    assert read("1970-01-02", "1970-01-05") == ("dates, such as 1970-01-02", [1, 4])
    assert read(19700102, 19700105) == ("dates, such as 19700102", [1, 4])


def test_dates_far_away_and_the_year_9999() -> None:
    ends = clean(pd.Series(["1970-01-11", "9999-12-31", "1500-01-01", None], dtype=object))
    for cells in (ends, pd.to_datetime(ends).astype("datetime64[us]")):
        found = find("end", cells)
        assert (found.role, found.missing) == ("date", 2)
        assert np.array_equal(code(found, cells), [10, np.nan, -171664, np.nan], equal_nan=True)
    whole = pd.Series([19700111, 99991231, 19700112])
    found = find("end", whole)
    assert (found.role, found.missing) == ("date", 1)
    assert np.array_equal(code(found, whole), [10, np.nan, 11], equal_nan=True)
    old = clean(pd.Series(["02.01.0001", "31.12.9999"] + ["01.01.1700"] * 10, dtype=object))
    assert "such as 02.01.0001 (0001-01-02)" in find("d", old).why


def test_codes() -> None:
    dates = clean(pd.Series(["31.12.1970", "01.01.1970", None, "1970-01-11"], dtype=object))
    assert np.array_equal(code(find("d", dates), dates), [364, 0, np.nan, 10], equal_nan=True)
    words = clean(pd.Series(["b", "a", "B ", None, "b"], dtype=object))
    found = find("w", words)
    assert found.values == ("a", "b")
    assert found.why == "words; spellings that differ in case, blanks or zeros alone count as the same (1 more)"
    assert np.array_equal(code(found, words), [1, 0, 1, np.nan, 1], equal_nan=True)
    assert code(found, pd.Series(["c", "A"])).tolist() == [-1, 0]
    mostly = clean(pd.Series([*map(str, range(100, 130)), "unknown", ">90"], dtype=object))
    found = find("n", mostly)
    assert (found.role, found.missing) == ("number", 2)
    assert "2 cells (>90, unknown) count as empty" in found.why
    assert np.isnan(code(found, mostly)[-2:]).all()


def test_ids_are_left_out_and_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i + 1},P{i:04},{rng.integers(1000, 9999)},{rng.normal():.3f},{i % 2},{i % 3}" for i in range(60)]
    file = write(tmp_path / "a.csv", "\n".join(["nr,patient_id,income,x,label,site", *rows]))
    source = load(file, column="site")
    assert roles(source) == {
        "nr": "id", "patient_id": "id", "income": "number", "x": "number", "label": "label", "site": "owner",
    }  # fmt: skip
    assert source.table.notes[0].startswith("'nr' looks like an id or free text (it counts the rows) and is left out")
    kept = load(file, column="site", numeric=("nr",), words=("income",), drop=("x",))
    assert roles(kept) == roles(source) | {"nr": "number", "income": "words", "x": "unused"}
    alone = load(write(tmp_path / "b.csv", "\n".join(["a,label", *(f"{i},{i % 2}" for i in range(30))])))
    assert roles(alone)["a"] == "number"  # there is nothing else to learn from


def test_an_id_that_begins_anew_with_each_owner() -> None:
    owners = np.repeat(["a", "b"], 30)
    assert find("window", pd.Series([*range(30), *range(30)]), owners).why == "it counts the rows"
    assert find("student", pd.Series([*range(5, 35), *range(5, 35)][::-1]), owners).role == "id"
    assert find("height", pd.Series([*range(5, 35), *range(5, 35)][::-1]), owners).role == "number"


def test_numbers_that_rise_from_row_to_row_over_all_owners_are_an_id() -> None:
    """Whatever they are called: mothers with two children each, in villages one after the other."""
    villages, mothers = np.repeat(["a", "b", "c"], 40), pd.Series(np.repeat(np.arange(60) * 7 + 2, 2))
    assert find("mom", mothers, villages).why == "its numbers rise from row to row, owner after owner"
    assert find("mom", mothers[::-1], villages).role == "number", "some fall"
    assert find("day", mothers, np.tile(["a", "b", "c"], 40)).role == "number", "a table in the order of time"
    assert find("size", pd.Series(np.repeat([3, 5, 8], 40)), villages).role == "number", "it is the same for an owner"
    assert find("mom", mothers + 0.5, villages).role == "number", "no whole numbers"
    assert find("mom", mothers, villages, Overrule(numeric=("mom",))).role == "number"


def test_a_number_of_a_person_is_an_id_however_it_is_abbreviated() -> None:
    numbers = pd.Series(np.random.default_rng(0).permutation(9000)[:100] + 100)
    for name in ("pid", "pidnum", "patient_id_no", "case id number"):
        assert find(name, numbers).role == "id"
    assert find("paid", numbers).role == "number"


def test_how_many_categories_are_told_apart_is_said() -> None:
    towns = pd.Series([f"town {i % 70}" for i in range(700)])
    assert find("town", towns).done == "one of 70 categories; only the 50 most common are told apart"


def test_names_of_people_are_left_out() -> None:
    people = pd.Series(["Anna", "Ben", "Carla", "Dan"] * 10)
    for name in ("first_name", "Last Name", "mother.surname", "forename"):
        assert (find(name, people).role, find(name, people).kept) == ("unused", False)
    assert find("first_name", people, said=Overrule(words=("first_name",))).role == "words"
    assert find("species_name", people).role == "words"


def test_types_that_files_do_not_have() -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "took": pd.to_timedelta([60, 90, None], "s"),
            "kind": pd.Categorical(["a", None, "b"]),
            "answer": np.array([True, None, False], dtype=object),
        }
    )
    cells = {name: clean(frame[name]) for name in frame}
    assert {name: find(name, column).role for name, column in cells.items()} == {
        "whole": "number", "took": "number", "kind": "words", "answer": "yes/no",
    }  # fmt: skip
    codes = [code(find(name, column), column) for name, column in cells.items()]
    expected = [[1, np.nan, 3], [60, 90, np.nan], [0, np.nan, 1], [1, np.nan, 0]]
    assert np.array_equal(codes, expected, equal_nan=True)


def test_spellings_of_an_owner_are_one_and_said(tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 7},{i % 2},{who}" for i, who in enumerate(["North", "north ", "south"] * 5))
    source = load(write(tmp_path / "a.csv", "x,label,site\n" + rows), column="site")
    assert set(source.columns["site"]) == {"north", "south"}
    assert source.table is not None
    assert "spellings of 'site' that differ in case or blanks alone count as one owner" in source.table.notes


def test_what_is_said_of_columns_that_had_to_be_kept_or_are_called_numbers() -> None:
    column = find("n", clean(pd.Series(["1", "low", "3", "low"], dtype=object)), said=Overrule(numeric=("n",)))
    assert (column.missing, column.why) == (2, "you said so; 2 cells (low) count as empty")
    frame = pd.DataFrame({"id": range(30), "label": [0, 1] * 15})
    (kept, _) = columns_of(frame, ["label"], None, None, Overrule())
    assert (kept.role, kept.why) == ("number", "numbers; perhaps an id, but there is nothing else to learn from")


def test_overrule_by_name() -> None:
    numbers = pd.Series([1, 2, 1, 3])
    assert find("x", numbers, said=Overrule(words=["x"])).values == ("1", "2", "3")
    assert find("x", numbers, said=Overrule(drop=["x"])).done == "left out"


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        ([0, 1] * 20, "auto", ("0", "1")),
        ([61, 72, 58, 66, 80, 61, 75, 59, 90, 77], "auto", ()),  # few, but hardly any twice
        (["no", "Yes", "yes ", "YES"] * 10, "auto", ("no", "yes")),
        (list(range(25)) * 12, "auto", tuple(map(str, range(25)))),  # many, but of equal size and from 0 on
        (list(range(40)), "auto", ()),
        (list(range(40)), "quantity", ()),
        ([0.5, 1.5] * 20, "auto", ()),
        ([0.5, 1.5] * 20, "classes", ("0.5", "1.5")),
        ([0, 1] * 20, "quantity", ()),
        (["1,5", "2,5"] * 20, "auto", ()),
    ],
)
def test_classes_or_a_quantity(tmp_path: Path, values: Any, task: str, classes: Any) -> None:
    pd.DataFrame({"a": np.random.default_rng(0).normal(size=len(values)), "label": values}).to_csv(
        tmp_path / "a.csv", index=False
    )
    source = load(tmp_path / "a.csv", task=task)
    assert source.classes == classes
    assert source.y.is_floating_point() == (not classes)


def test_a_whole_number_that_is_a_quantity_is_said(tmp_path: Path) -> None:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(as_frame=True)
    bunch.frame.to_csv(tmp_path / "diabetes.csv", index=False)
    source = load(tmp_path / "diabetes.csv", label="target")
    assert source.classes == ()
    assert "214 different whole numbers, which looks like a quantity" in source.table.notes[0]


def test_yes_and_no_in_several_spellings_are_two_classes_and_said(tmp_path: Path) -> None:
    table = "site,x,label\n" + "".join(f"{'ab'[i % 2]},{i % 7},{('no', '1', 'YES', '0')[i % 4]}\n" for i in range(40))
    source = load(write(tmp_path / "a.csv", table), label="label")
    assert source.classes == ("no", "yes")
    assert source.y[:4].tolist() == [0, 1, 1, 0]
    assert "'label' holds 0, 1, no, YES, which count as no and yes" in source.table.notes
    for word, letter in (("no", "n"), ("1\n", "t\n"), ("0\n", "f\n"), ("YES", "y")):
        table = table.replace(word, letter)
    letters = load(write(tmp_path / "b.csv", table), label="label")
    assert letters.classes == ("f", "n", "t", "y"), "codes of something else"


def test_several_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "x,a,b\n1,yes,0\n2,no,1\n4,yes,1\n")
    source = load(file, label="a,b")
    assert source.y.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert source.classes == ("a", "b")
    with pytest.raises(InputError, match="each must be yes or no"):
        load(file, label="a,x")


@pytest.mark.parametrize(
    ("text", "kwargs", "reason"),
    [
        ("age,lable\n1,0\n", {}, "no label column 'label'; did you mean 'lable'"),
        ("age,label,site\n1,0,a\n", {"column": "sight"}, "no column 'sight'; did you mean 'site'"),
        ("age,label\n", {}, "has no rows"),
        ("", {}, "has no rows"),
        ("label\n1\n", {}, "no columns beside 'label'"),
        ("age,label\n1,\n2,NA\n", {}, "label are empty in every row"),
        ("age,label\n1,1\n2,1\n", {}, "'label' is 1 in every row"),
        ("age,age,label\n1,2,3\n", {}, "two columns are called age"),
        ("age,label\n1,0\n", {"column": "label"}, "cannot be both"),
        ("age,label\n1,0\n", {"drop": ("agee",)}, "--drop: a.csv has no column 'agee'; did you mean 'age'"),
        ("age,label\n1,0\n", {"drop": ("label",)}, "is the label, the owner or the group"),
        ("age,label\n1,a\n2,b\n", {"task": "quantity"}, "a row holds 'a'; use --task classes"),
        ("age,label\n1,a\n2,b\n", {"task": "class"}, "unknown task 'class'; did you mean 'classes'"),
        (
            "x,label\n" + "\n".join(f"{i % 7},w{i}" for i in range(90)),
            {},
            "in 90 rows, too many for classes; use another",
        ),
        (
            "x,label\n" + "\n".join(f"{i % 7},{i if i % 9 else 'n.b.'}" for i in range(90)),
            {},
            "too many for classes; empty the 10 cells that are no numbers, such as 'n.b.'",
        ),
        (
            "x,label\n" + "\n".join(f"{i % 7},{i}" for i in range(90)),
            {"task": "classes"},
            "90 rows, too many for classes",
        ),
        ("age,label\n1,1\n2,1\n3,\n", {}, "'label' is 1 in every row that has one"),
        ("age,label\n1,A\n2,b\n", {"positive": "XX"}, "positive 'XX' is no value of 'label'"),
        ("sex,label\nm,A\nf,b\n", {"numeric": ("sex",)}, "--numeric: 'sex' holds no number, but f, m; use --words"),
    ],
)
def test_csv_errors(tmp_path: Path, text: str, kwargs: dict[str, str] | dict[str, tuple[str]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load(write(tmp_path / "a.csv", text), **kwargs)


def test_unreadable_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        load(tmp_path / "gone.csv")
    with pytest.raises(DataError, match=r"odd.csv cannot be read: line 3 has 3 cells, expected 2"):
        load(write(tmp_path / "odd.csv", "a,label\n1,2\n1,2,3\n"))
    with pytest.raises(DataError, match=r"late.csv cannot be read"):
        load(write(tmp_path / "late.csv", "a,label\n" + "1,2\n" * 100 + "1,2,3\n"))
    for name in ("odd.parquet", "odd.xlsx"):
        with pytest.raises(DataError, match=rf"{name} cannot be read"):
            load(write(tmp_path / name, "not such a file"))


def test_files_with_another_kinds_ending(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "label": [0, 1]})
    frame.to_excel(tmp_path / "book.xlsx", index=False)
    frame.to_parquet(tmp_path / "table.parquet", index=False)
    for real, named, what in (
        ("book.xlsx", "book.csv", "holds no text; by its first bytes it is an Excel workbook .*ends in .xlsx"),
        ("book.xlsx", "book.parquet", "; by its first bytes it is an Excel workbook"),
        ("table.parquet", "table.csv", "holds no text; by its first bytes it is Parquet; let its name end in .parquet"),
        ("table.parquet", "table.xlsx", "; by its first bytes it is Parquet"),
    ):
        (tmp_path / named).write_bytes((tmp_path / real).read_bytes())
        with pytest.raises(DataError, match=rf"{named} cannot be read: .*{what}"):
            load(tmp_path / named)
    with pytest.raises(DataError, match=r"noise.csv cannot be read: it holds no text$"):
        load(write(tmp_path / "noise.csv", "a\0\1b,label\n1,0\n"))


def test_a_line_with_fewer_cells_is_said(tmp_path: Path) -> None:
    frame = read_frame([write(tmp_path / "a.csv", "a,b,label\n1,2,0\n1\n3,4,1\n")])
    assert frame.attrs["notes"] == [
        "a.csv: line 3 has fewer cells than the first line (1 for 3); those that lack count as empty"
    ]
    assert read_frame([write(tmp_path / "b.csv", "a,b\n1,2,\n3,4,\n")]).attrs["notes"] == []


def test_rows_without_label_or_owner_are_left_out_and_said(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "x,label,site\n1,0,a\n2,,a\n3,1,\n4,1,b\n")
    source = load(file, column="site")
    assert source.table.rows.tolist() == [0, 3]
    assert source.table.notes == (
        "rows left out because 'label' is empty: 1, the first of them row 2",
        "rows left out because 'site' is empty: 1, the first of them row 3",
    )


def test_tables_are_told_from_other_folders(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    image_folder("faces", {"train": 2})
    assert load(str(tmp_path / "faces")).pixels
    assert table_files("mnist") == []
    comma = write(tmp_path / "a,b.csv", PLAIN)
    assert table_files(comma) == [comma]


def test_the_example_comes_with_the_package() -> None:
    source = load("heart-disease")
    assert len(source) == 740
    assert sorted(set(source.columns["hospital"])) == ["cleveland", "hungarian", "switzerland", "va"]
    assert roles(source)["split"] == "part"
    assert int((source.parts == "test").sum()) == 254


def test_real_hospitals_from_one_file_and_from_four(real_data: Path) -> None:
    folder = real_data / "tables" / "heart_disease"
    one = Scenario(
        data=str(folder / "heart_disease.csv"), label="disease", column="hospital", split="column", clients=None
    ).build(0)
    four = Scenario(data=str(folder / "sites"), label="c14", positive=">0", split="column", clients=None).build(0)
    assert one.names == four.names == ("cleveland", "hungarian", "switzerland", "va")
    raw = read_frame(table_files(folder / "sites"))
    assert len(raw) == 920
    complete = raw.drop(columns=["c11", "c12", "c13"]).dropna()
    table = read_frame([folder / "heart_disease.csv"])
    for hospital in one.names:
        a = complete[complete["owner"] == hospital].drop(columns="owner").astype(float)
        b = table[table["hospital"] == hospital].drop(columns=["hospital", "split"]).astype(float)
        a["c14"] = (a["c14"] > 0).astype(float)
        assert sorted(map(tuple, a.to_numpy())) == sorted(map(tuple, b.to_numpy()))


@pytest.mark.parametrize(
    ("file", "label", "owner", "owners", "classes", "left_out"),
    [
        ("har_smartphones/har_features.csv", "activity", "subject", 30, 6, []),
        ("beijing_air/beijing_air_daily.csv", "PM2.5", "station", 12, 0, []),
        ("schools/Exam.csv", "normexam", "school", 64, 0, ["student"]),
        ("schools/nlschools.csv", "lang", "class", 133, 0, []),
        ("tcga_brca/tcga_brca.csv", "E", "region", 6, 2, ["pid", "split"]),
    ],
)
def test_real_tables(
    real_data: Path, file: str, label: str, owner: str, owners: int, classes: int, left_out: list[str]
) -> None:
    path = real_data / "tables" / file
    plan = Scenario(data=str(path), label=label, column=owner, split="column", clients=None)
    source = plan.load()
    federation = plan.build(0, source=source)
    assert federation.clients == owners
    assert len(federation.classes) == classes
    assert [c.name for c in source.table.columns if c.done == "left out"] == left_out
    assert all(bool(split.x.isfinite().all()) for split in (federation.train, federation.validation, federation.test))
    assert abs(float(federation.train.x.mean(0)[federation.train.x.std(0) > 0.99].mean())) < 1e-4  # long tails end
    assert federation.preparation is not None
    again = federation.preparation.transform(path, federation.names[0])
    assert torch.equal(again[federation.test.rows], federation.test.x)


def test_a_column_called_owner_is_not_taken_for_the_name_of_a_file(tmp_path: Path) -> None:
    rows = "owner,x,label\na,1.5,yes\nb,2.5,no\na,3.5,no\nb,4.5,yes\n"
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text(rows)
    two.write_text("x,label\n1.5,yes\n2.5,no\n")
    table = read_table([one], Reading(column="owner")).table
    assert table is not None
    assert {c.name: c.why for c in table.columns}["owner"] == "you said so"
    one.write_text(two.read_text())
    both = read_table([one, two], Reading(column="owner")).table
    assert both is not None
    assert {c.name: c.why for c in both.columns}["owner"] == "the name of the file"


def test_owners_whose_numbers_are_very_large_keep_their_names() -> None:
    # As int64 the first three were -1, -2 and -3, and the next two both the lowest number there is.
    large = pd.Series([2**64 - 1, 2**64 - 2, 2**64 - 3], dtype="uint64")
    assert owner_values(large).astype(str).tolist() == [str(2**64 - k) for k in (1, 2, 3)]
    assert len(np.unique(owner_values(pd.Series([1e20, 2e20, 1e20])))) == 2
    assert owner_values(pd.Series([1.0, 2.0, 10.0])).tolist() == [1, 2, 10]
    assert owner_values(pd.Series([1, 2, 10], dtype="uint8")).dtype == np.int64


def test_a_column_that_is_infinite_in_every_row_is_left_out() -> None:
    found = find("a", pd.Series([np.inf] * 9))
    assert (found.role, found.why) == ("constant", "it is inf in every row")
