# SPDX-License-Identifier: MIT
"""Functions, inlined calls and variables in the debug information of a code object, parsed by pyelftools.

Addresses are those in the file: from the beginning of the image.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiter_like.sim.debugging.data_types import DataType

MISSING = ("the debug information of functions and variables is read by pyelftools, which is not installed: "
           "pip install pyelftools, or this package's extra `debug`")
SECTIONS = ("debug_info", "debug_abbrev", "debug_str", "debug_line", "debug_line_str", "debug_str_offsets",
            "debug_addr", "debug_loc", "debug_loclists", "debug_ranges", "debug_rnglists")
_ENCODINGS = {2: "u", 4: "f", 5: "i", 6: "i", 7: "u", 8: "u", 0x10: "u"}  # DW_ATE_: boolean, float, signed, …
_QUALIFIERS = ("DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_typedef", "DW_TAG_restrict_type",
               "DW_TAG_atomic_type", "DW_TAG_immutable_type")
_POINTERS = ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type")
_STRUCTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")


@dataclass(frozen=True)
class Variable:
    """A variable or parameter of a function.

    Attributes:
        name, type: as in the source.
        is_parameter: of the function that it is in.
        expressions: (begin, end, operations) of its locations; the operations are pyelftools'.
        constant: its value, where the compiler kept only that.
        frame_base: operations that say where the function's frame is.
    """

    name: str
    type: DataType
    is_parameter: bool
    expressions: tuple[tuple[int, int, list], ...]
    constant: int | None
    frame_base: list

    def operations(self, address: int) -> list | None:
        """The DWARF operations that locate the variable at `address`, or None."""
        return next((found for begin, end, found in self.expressions if begin <= address < end and found), None)


@dataclass
class Scope:
    """A function, a call of one that was inlined, or a block.

    Attributes:
        name, linkage_name: of the function; "" for a block.
        ranges: its code.
        call: of an inlined one: the file and line of the call.
        is_inlined: whether it is one.
    """

    name: str
    linkage_name: str
    ranges: list[tuple[int, int]]
    call: tuple[str, int] | None = None
    is_inlined: bool = False
    scopes: list[Scope] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    def holds(self, address: int) -> bool:
        """Whether its code is there."""
        return any(begin <= address < end for begin, end in self.ranges)

    def chain(self, address: int) -> list[Scope]:
        """Scopes around an address, this one first."""
        inner = next((scope for scope in self.scopes if scope.holds(address)), None)
        return [self, *(inner.chain(address) if inner else ())]


class DebugInfo:
    """Functions of a code object.

    Attributes:
        functions: those that have code.
        damage: why some of it could not be read, "" = all was.
    """

    def __init__(self, sections: Mapping[str, bytes]):
        """
        Args:
            sections: name without the dot → contents; missing ones are left out.
        Raises:
            ImportError: pyelftools is not installed.
        """
        try:
            from elftools.common.exceptions import DWARFError, ELFParseError
            from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
        except ImportError as error:
            raise ImportError(MISSING) from error
        described = {f"{name}_sec": DebugSectionDescriptor(io.BytesIO(data), f".{name}", 0, len(data), 0)
                     for name, data in sections.items()}
        absent = ("debug_aranges", "debug_frame", "eh_frame", "debug_pubtypes", "debug_pubnames", "debug_sup",
                  "gnu_debugaltlink", "debug_types")
        empty = dict.fromkeys((f"{name}_sec" for name in (*SECTIONS, *absent)), None)
        self.functions: list[Scope] = []
        self.damage = ""
        if "debug_info" not in sections or "debug_abbrev" not in sections:
            return
        dwarf = DWARFInfo(config=DwarfConfig(True, "AMDGPU", 8), **{**empty, **described})
        try:
            for unit in dwarf.iter_CUs():
                self.functions += _Unit(dwarf, unit).functions()
        except (DWARFError, ELFParseError, KeyError, IndexError, ValueError, AssertionError, AttributeError,
                TypeError) as error:  # Damaged sections raise any of these.
            self.damage = f"the debug information is damaged: {type(error).__name__}: {error}"

    def chain(self, address: int) -> list[Scope]:
        """The function at an address and the scopes in it, the outermost first; none where nothing is known."""
        return next((function.chain(address) for function in self.functions if function.holds(address)), [])

    def depth(self, address: int) -> int:
        """How many calls there were inlined."""
        return sum(scope.is_inlined for scope in self.chain(address))

    def variables(self, address: int) -> list[Variable]:
        """Those in scope, the innermost first."""
        return [variable for scope in reversed(self.chain(address)) for variable in scope.variables]


class _Unit:
    """One compilation unit's reader."""

    def __init__(self, dwarf: Any, unit: Any):
        from elftools.dwarf.dwarf_expr import DWARFExprParser
        from elftools.dwarf.locationlists import LocationParser

        self._dwarf, self._unit = dwarf, unit
        self._lists = LocationParser(dwarf.location_lists())
        self._expressions = DWARFExprParser(unit.structs)
        self._ranges = dwarf.range_lists()
        self._types: dict[int, DataType] = {}
        self._files = self._file_names()
        self._base = self._number(unit.get_top_DIE(), "DW_AT_low_pc") or 0

    def functions(self) -> list[Scope]:
        return [self._scope(die, []) for die in self._of(self._unit.get_top_DIE())
                if die.tag == "DW_TAG_subprogram" and self._code(die)]

    def _of(self, die: Any) -> Iterator[Any]:
        """Children, also those of namespaces: kernels may be in one."""
        for child in die.iter_children():
            if child.tag == "DW_TAG_namespace":
                yield from self._of(child)
            else:
                yield child

    def _scope(self, die: Any, frame_base: list) -> Scope:
        inlined = die.tag == "DW_TAG_inlined_subroutine"
        if "DW_AT_frame_base" in die.attributes:
            frame_base = self._expressions.parse_expr(die.attributes["DW_AT_frame_base"].value)
        call = None
        if inlined:
            line = self._number(die, "DW_AT_call_line") or 0
            call = (self._files.get(self._number(die, "DW_AT_call_file"), ""), line)
        is_block = die.tag == "DW_TAG_lexical_block"
        scope = Scope("" if is_block else self._text(die, "DW_AT_name"),
                      "" if is_block else self._text(die, "DW_AT_linkage_name"), self._code(die), call, inlined)
        for child in die.iter_children():
            if child.tag in ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"):
                scope.scopes.append(self._scope(child, frame_base))
            elif child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                if (variable := self._variable(child, frame_base)).name:
                    scope.variables.append(variable)
        return scope

    def _variable(self, die: Any, frame_base: list) -> Variable:
        found = []
        if (location := die.attributes.get("DW_AT_location")) is not None:
            version = self._unit["version"]
            if self._lists.attribute_has_location(location, version):
                found = list(self._places(self._lists.parse_from_attribute(location, version, die)))
        constant = die.attributes.get("DW_AT_const_value")
        value = constant.value if constant is not None and isinstance(constant.value, int) else None
        return Variable(self._text(die, "DW_AT_name"), self._type(self._reference(die, "DW_AT_type")),
                        die.tag == "DW_TAG_formal_parameter", tuple(found), value, frame_base)

    def _places(self, location: Any) -> Iterator[tuple[int, int, list]]:
        from elftools.dwarf.locationlists import BaseAddressEntry, LocationEntry, LocationExpr

        if isinstance(location, LocationExpr):
            yield 0, 2**64, self._expressions.parse_expr(location.loc_expr)
            return
        base = self._base
        for entry in location:
            if isinstance(entry, BaseAddressEntry):
                base = entry.base_address
            elif isinstance(entry, LocationEntry):
                start = 0 if entry.is_absolute else base
                yield (start + entry.begin_offset, start + entry.end_offset,
                       self._expressions.parse_expr(entry.loc_expr))

    def _code(self, die: Any) -> list[tuple[int, int]]:
        if (ranges := die.attributes.get("DW_AT_ranges")) is not None:
            from elftools.dwarf.ranges import BaseAddressEntry

            found, base = [], self._base
            for entry in self._ranges.get_range_list_at_offset(ranges.value, self._unit):
                if isinstance(entry, BaseAddressEntry):
                    base = entry.base_address
                else:
                    start = 0 if entry.is_absolute else base
                    found.append((start + entry.begin_offset, start + entry.end_offset))
            return found
        begin, high = self._number(die, "DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
        if begin is None or high is None:
            return []
        return [(begin, high.value if high.form == "DW_FORM_addr" else begin + high.value)]

    def _origin(self, die: Any) -> Any:
        for name in ("DW_AT_abstract_origin", "DW_AT_specification"):
            if name in die.attributes:
                return die.get_DIE_from_attribute(name)
        return None

    def _reference(self, die: Any, name: str) -> Any:
        while die is not None:
            if name in die.attributes:
                return die.get_DIE_from_attribute(name)
            die = self._origin(die)
        return None

    def _text(self, die: Any, name: str) -> str:
        while die is not None:
            if name in die.attributes:
                value = die.attributes[name].value
                return value.decode(errors="replace") if isinstance(value, bytes) else ""
            die = self._origin(die)
        return ""

    @staticmethod
    def _number(die: Any, name: str) -> int | None:
        return die.attributes[name].value if name in die.attributes else None

    def _file_names(self) -> dict[int, str]:
        program = self._dwarf.line_program_for_CU(self._unit)
        if program is None:
            return {}
        first = 0 if program.header["version"] >= 5 else 1
        folders = [*([b""] * first), *program["include_directory"]]
        base = self._text(self._unit.get_top_DIE(), "DW_AT_comp_dir")
        return {first + index: _path(entry.name, folders[entry.dir_index], base)
                for index, entry in enumerate(program["file_entry"])}

    def _type(self, die: Any) -> DataType:
        if die is None:
            return DataType("void", 0, "unknown")
        if die.offset not in self._types:
            self._types[die.offset] = DataType(self._text(die, "DW_AT_name"), 0, "unknown")  # Types may recur.
            self._types[die.offset] = self._new_type(die)
        return self._types[die.offset]

    def _new_type(self, die: Any) -> DataType:
        name, size = self._text(die, "DW_AT_name"), self._number(die, "DW_AT_byte_size") or 0
        if die.tag in _QUALIFIERS:
            return self._type(self._reference(die, "DW_AT_type"))
        if die.tag in _POINTERS:
            return DataType(f"{self._type(self._reference(die, 'DW_AT_type')).name} *", size or 8, "pointer")
        if die.tag in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
            encoding = _ENCODINGS.get(self._number(die, "DW_AT_encoding") or 5, "u")
            scalar = "bf16" if "bf16" in name else f"{encoding}{8 * size}"
            return DataType(name, size, "number" if size in (1, 2, 4, 8) else "unknown", scalar)
        if die.tag in _STRUCTS:
            members = tuple((self._text(one, "DW_AT_name"), self._number(one, "DW_AT_data_member_location") or 0,
                             self._type(self._reference(one, "DW_AT_type")))
                            for one in die.iter_children() if one.tag == "DW_TAG_member")
            return DataType(name, size, "struct", members=members)
        if die.tag == "DW_TAG_array_type":
            element, counts = self._type(self._reference(die, "DW_AT_type")), tuple(self._counts(die))
            total = element.size
            for count in counts:
                total *= count
            shown = "".join(f"[{count}]" for count in counts)
            return DataType(f"{element.name}{shown}", total, "array", element=element, counts=counts)
        return DataType(name or die.tag, size, "unknown")

    def _counts(self, die: Any) -> Iterator[int]:
        for one in die.iter_children():
            if one.tag == "DW_TAG_subrange_type":
                upper = self._number(one, "DW_AT_upper_bound")
                yield self._number(one, "DW_AT_count") or (upper + 1 if isinstance(upper, int) else 0)


def _path(name: bytes, folder: bytes, base: str) -> str:
    """A file's path, as csrc/sim/load/debug_line.cpp joins it."""
    path = name.decode(errors="replace")
    for one in (folder.decode(errors="replace"), base):
        if not path.startswith("/") and one not in ("", "."):
            path = f"{one}/{path}"
    return path
