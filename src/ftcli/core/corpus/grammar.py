"""What the sample corpus is about: 20 areas times 14 intents, 280 labels, each said in English and in Korean.

In a template `{x}` is the area's noun; `{을}`, `{이}`, `{은}` and `{와}` are the Korean particles in the form that the noun before them
takes (을/를, 이/가, 은/는, 과/와).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """A department or product: the first half of a label."""

    name: str
    english: tuple[str, ...]
    korean: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Intent:
    """What the writer wants: the second half of a label."""

    name: str
    topic: tuple[str, str]
    """Its name in English and Korean."""
    english: tuple[str, ...]
    korean: tuple[str, ...]


AREAS: tuple[Area, ...] = (
    Area("billing", ("monthly invoice", "tax invoice", "invoice total"), ("월 청구서", "세금 청구서", "청구서 금액")),
    Area("payroll", ("payroll statement", "payroll transfer", "payroll run"), ("급여 명세서", "급여 이체 내역", "급여 정산")),
    Area("storage", ("cloud storage", "backup storage", "storage volume"), ("클라우드 저장소", "백업 저장소", "저장소 용량")),
    Area("mobile", ("mobile app", "app login page", "tablet app"), ("모바일 앱", "앱 로그인 화면", "태블릿 앱")),
    Area("website", ("company website", "website banner", "website search"), ("회사 홈페이지", "홈페이지 배너", "홈페이지 검색창")),
    Area("shipping", ("parcel", "express parcel", "parcel pickup"), ("택배", "특급 택배", "택배 픽업")),
    Area("warehouse", ("warehouse stock", "warehouse pallet", "warehouse shelf"), ("창고 재고", "창고 팔레트", "창고 선반")),
    Area("procurement", ("purchase contract", "purchase form", "bulk purchase"), ("구매 계약서", "구매 신청서", "대량 구매 건")),
    Area("insurance", ("insurance policy", "insurance premium", "accident insurance"), ("보험 증권", "보험 납입금", "상해 보험")),
    Area("loans", ("business loan", "loan repayment", "loan agreement"), ("사업자 대출", "대출 상환 계획", "대출 약정서")),
    Area("cards", ("corporate card", "card reader", "prepaid card"), ("법인 카드", "카드 단말기", "선불 카드")),
    Area("travel", ("flight to Tokyo", "flight ticket", "return flight"), ("도쿄행 항공권", "단체 항공권", "왕복 항공권")),
    Area("events", ("exhibition booth", "exhibition ticket", "exhibition hall"), ("전시회 부스", "전시회 입장권", "전시회 홀")),
    Area("training", ("training course", "training video", "safety training"), ("교육 과정", "교육 동영상", "안전 교육 강의")),
    Area("recruiting", ("job interview", "interview room", "interview schedule"), ("채용 면접", "면접 장소", "면접 시간표")),
    Area("security", ("access badge", "visitor badge", "badge scanner"), ("직원 출입증", "방문객 출입증", "출입증 스캐너")),
    Area("network", ("office wifi", "guest wifi", "wifi router"), ("사무실 와이파이", "손님용 와이파이", "와이파이 공유기")),
    Area("devices", ("laser printer", "label printer", "printer cartridge"), ("레이저 프린터", "라벨 프린터", "프린터 카트리지")),
    Area("catering", ("lunch buffet", "team lunch", "lunch menu"), ("점심 뷔페", "단체 점심 도시락", "점심 메뉴")),
    Area("facilities", ("elevator", "freight elevator", "elevator door"), ("엘리베이터", "화물 엘리베이터", "엘리베이터 문")),
)

INTENTS: tuple[Intent, ...] = (
    Intent(
        "refund",
        ("refund", "환불"),
        (
            "Please refund what we paid for the {x}.",
            "We would like a full refund for the {x}.",
            "When will the refund for the {x} reach our account?",
        ),
        ("결제한 {x}{을} 환불해 주세요.", "{x} 전액 환불을 요청드립니다.", "{x} 환불 금액은 언제 입금되나요?"),
    ),
    Intent(
        "cancel",
        ("cancellation", "취소"),
        (
            "Please cancel the {x} with immediate effect.",
            "We have to cancel the {x} before the end of the month.",
            "Kindly confirm the cancellation of the {x}.",
        ),
        ("{x}{을} 즉시 취소해 주세요.", "부득이하게 {x}{을} 취소하려고 합니다.", "{x} 취소 처리가 되었는지 확인 부탁드립니다."),
    ),
    Intent(
        "exchange",
        ("exchange", "교환"),
        (
            "We would like to exchange the {x} for another model.",
            "Is an exchange of the {x} for a different type possible?",
            "Please exchange the {x}, since it is not the one we chose.",
        ),
        ("{x}{을} 다른 종류로 교환하고 싶습니다.", "{x} 교환이 가능한지 알려 주세요.", "선택한 것과 달라 {x} 교환을 신청합니다."),
    ),
    Intent(
        "delay",
        ("delay", "지연"),
        (
            "The {x} is delayed and nobody tells us why.",
            "The {x} is delayed by more than a week now.",
            "How long will the delay of the {x} last?",
        ),
        ("{x}{이} 계속 지연되고 있습니다.", "{x}{이} 일주일째 지연 중입니다.", "{x} 지연 사유를 알려 주세요."),
    ),
    Intent(
        "damage",
        ("damage", "고장"),
        (
            "The {x} is damaged and cannot be used any more.",
            "We found the {x} damaged this morning.",
            "Please repair the {x}, because it is badly damaged.",
        ),
        ("{x}{이} 고장 나서 사용할 수 없습니다.", "오늘 아침 {x}에서 고장을 발견했습니다.", "{x}{이} 고장이라 수리가 필요합니다."),
    ),
    Intent(
        "quote",
        ("price quote", "견적"),
        (
            "Could you send us a price quote for the {x}?",
            "We need a written quote for the {x} with the volume discount.",
            "We have not received your quote for the {x} yet.",
        ),
        ("{x} 견적을 보내 주시겠어요?", "수량 할인을 반영한 {x} 견적서가 필요합니다.", "{x} 견적을 아직 받지 못했습니다."),
    ),
    Intent(
        "upgrade",
        ("upgrade", "업그레이드"),
        (
            "We want to upgrade the {x} to the premium level.",
            "Is an upgrade of the {x} possible during the contract?",
            "Please upgrade the {x} to the larger plan.",
        ),
        (
            "{x}{을} 프리미엄으로 업그레이드하고 싶습니다.",
            "계약 기간 중 {x} 업그레이드가 가능한가요?",
            "{x}{을} 상위 등급으로 업그레이드해 주세요.",
        ),
    ),
    Intent(
        "access",
        ("permission", "접근 권한"),
        (
            "I have no permission for the {x}.",
            "Please grant me permission for the {x}.",
            "My permission for the {x} was taken away again.",
        ),
        ("{x}에 접근 권한이 없다고 나옵니다.", "{x} 접근 권한을 부여해 주세요.", "{x} 접근 권한이 다시 사라졌습니다."),
    ),
    Intent(
        "complaint",
        ("complaint", "불만"),
        (
            "I must make a complaint about how the {x} was handled.",
            "This is a formal complaint concerning the {x}.",
            "Our complaint about the {x} has not been answered.",
        ),
        ("{x} 처리 방식에 불만을 제기합니다.", "{x} 관련하여 정식으로 불만을 접수합니다.", "{x} 불만 접수에 아직 답이 없습니다."),
    ),
    Intent(
        "renewal",
        ("renewal", "갱신"),
        (
            "The {x} expires soon and needs a renewal.",
            "Please send the renewal papers for the {x}.",
            "Is a renewal of the {x} for another year possible?",
        ),
        ("{x}{이} 곧 만료되어 갱신하려고 합니다.", "{x} 갱신 서류를 보내 주세요.", "{x}{을} 1년 더 갱신할 수 있나요?"),
    ),
    Intent(
        "correction",
        ("correction", "정정"),
        (
            "The name on the {x} is wrong and needs a correction.",
            "We ask for a correction of the details of the {x}.",
            "A typing error in the {x} makes a correction necessary.",
        ),
        ("{x}에 이름이 잘못 적혀 정정이 필요합니다.", "{x} 정보를 정정해 주세요.", "{x}에 오타가 있어 정정을 요청합니다."),
    ),
    Intent(
        "appointment",
        ("appointment", "방문 예약"),
        (
            "I would like to book an appointment about the {x}.",
            "Is an appointment for the {x} possible this week?",
            "Please move our appointment for the {x} to the afternoon.",
        ),
        ("{x} 관련 방문 예약을 잡고 싶습니다.", "이번 주에 {x} 방문 예약이 가능한가요?", "{x} 방문 예약을 오후로 옮겨 주세요."),
    ),
    Intent(
        "missing",
        ("missing item", "누락"),
        (
            "The {x} is missing and we cannot find it anywhere.",
            "A part of the {x} was missing when we checked.",
            "Since the move the {x} has been missing.",
        ),
        ("{x}{이} 누락되어 찾을 수 없습니다.", "확인해 보니 {x} 일부가 누락되었습니다.", "이사 후에 {x}{이} 누락되었습니다."),
    ),
    Intent(
        "praise",
        ("praise", "칭찬"),
        (
            "The {x} deserves praise, excellent work.",
            "Just a word of praise: the {x} is wonderful.",
            "I want to praise the team behind the {x}.",
        ),
        ("{x}{이} 정말 훌륭해서 칭찬드리고 싶습니다.", "{x}{은} 칭찬받을 만합니다.", "{x} 담당 팀을 칭찬합니다."),
    ),
)

OTHER_AREA: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        "The question about the {x} from last time is settled.",
        "By the way, the {x} works as agreed.",
        "The {x} is another matter.",
    ),
    ("지난번 {x} 문의는 이미 해결되었습니다.", "참고로 {x}{은} 약속대로 진행되고 있습니다.", "이 건은 {x}{와} 관련이 없습니다."),
)
"""Sentences that name an area which is not the row's: noise that a word counter trips over (English, Korean)."""

OTHER_INTENT: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        "My colleague writes to you separately about another {x}.",
        "Last year we wrote to you about a similar {x}.",
        "This has nothing to do with the earlier {x}.",
    ),
    ("{x}{은} 동료가 따로 연락드릴 예정입니다.", "작년에는 {x} 건으로 문의드린 적이 있습니다.", "오늘은 {x} 이야기가 아닙니다."),
)
"""The same for an intent that is not the row's."""
