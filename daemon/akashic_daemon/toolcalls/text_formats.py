"""The formats of JSON schema's strings that a grammar can say."""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
_UP_TO_28 = '"0" [1-9] | "1" [0-9] | "2" [0-8]'
_UP_TO_30 = '"0" [1-9] | [12] [0-9] | "30"'
_DATE = (
    f'[0-9]{{4}} "-" ( ( "0" [13578] | "1" [02] ) "-" ( {_UP_TO_30} | "31" ) '
    f'| ( "0" [469] | "11" ) "-" ( {_UP_TO_30} ) | "02-" ( {_UP_TO_28} ) )'
)
"""Without the 29th of February, which not every year has."""
_TIME = '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,6} )? ( "Z" | [+-] ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )'
_BYTE = '( "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9] [0-9] | [0-9] )'
_LABEL = "[a-z0-9] ( [a-z0-9-]{0,20} [a-z0-9] )?"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
    "ipv4": f'{_BYTE} "." {_BYTE} "." {_BYTE} "." {_BYTE}',
    "email": f'[a-zA-Z0-9] [a-zA-Z0-9_+-]{{0,30}} ( "." [a-zA-Z0-9_+-]{{1,30}} ){{0,3}} "@" {_LABEL} ( "." {_LABEL} ){{1,3}}',
    "hostname": f'{_LABEL} ( "." {_LABEL} ){{0,4}}',
}
