//! What providers say, as patterns (see `phrase`), for the rows of the table that read much prose. One list a row.
//!
//! A pattern names its subject: "too long" alone is said of a name, a list and a prompt alike.

/// A limit that never opens.
pub(super) const LIMIT_ZERO: &[&str] = &["quota exceeded *20 limit 0"];

/// A rate, by its period.
pub(super) const PER_MINUTE: &[&str] = &[
    "rpm|tpm|rps|qps|itpm|otpm",
    "requests|tokens|request|token|req|calls per? min|minute|second|sec|hour",
    "per minute|second",
    "~perminute|persecond",
    "~每分钟|每秒|毎分|分あたり|秒あたり|분당|초당",
    "pro minute|sekunde",
    "par minute|seconde",
    "por minuto|segundo",
    "al minuto|secondo",
    "в минуту|секунду",
];

/// A provider that says when to come back.
pub(super) const COME_BACK: &[&str] = &["retry in #", "try again in #", "retry after #"];

pub(super) const THROTTLED: &[&str] = &["~throttl", "too many tokens *4 wait"];

/// A limit of a day or longer: no turn lives to see it open.
pub(super) const LONG_QUOTA: &[&str] = &[
    "daily|weekly|monthly|annual|yearly usage|spend|spending|token|tokens|request|requests|call|calls|api|credit|free? limit|limits|quota|allowance|budget|cap|credits *4 exceeded|exhausted|reached|hit|depleted",
    "reached|hit|exceeded|exceeds|exceed|exhausted|used your|the|its|their|all|a? daily|weekly|monthly|annual|yearly included|usage|spend|spending|token|tokens|request|requests|call|calls|api|credit|free? limit|limits|quota|allowance|budget|cap|credits",
];

/// Throttling in its own words. They go before the words of billing, which throttles often name.
pub(super) const RATE_EXCEEDED: &[&str] = &[
    "rate limit|limits is|are|has|have|was|were? been? exceed|exceeded|reached|hit",
    "exceed|exceeds|exceeded|exceeding|reached|hit|over your|the|our|its|a? *2 rate limit|limits",
    "rate limited|limiting",
    "request|requests|call|token? rate is|was? too? exceeded|exceeds|high",
    "too many requests|calls|concurrent",
    "concurrency|concurrent *2 limit|limits *2 exceeded|reached",
    "error code? 1015",
    "~速率限制|过于频繁|频率过高|请求频率|并发数过高|流量限制|限流",
    "~レート制限|リクエストが多すぎ",
    "~요청 너무",
    "zu viele anfragen",
    "trop de requêtes|requetes",
    "demasiadas solicitudes|peticiones",
    "muitas solicitações|requisições",
    "troppe richieste",
    "слишком много запросов",
];

/// What is said of a parameter, or of the answer, and sounds like a context that is full.
pub(super) const NO_OVERFLOW: &[&str] = &[
    "context length|window|size parameter|option|setting|argument|value|field? must|should|can be a|an|one|set|positive|greater|between",
    "context|prompt length|window|size parameter|option|setting|argument|field is|was? invalid|unknown|unsupported|required|missing|not",
    "invalid|unsupported|unknown|unrecognized value|parameter|option|setting|argument for *2 context|prompt length|window|size",
    "unsupported|unknown|unrecognized parameter|option|setting|argument *3 context",
    "max|maximum completion|output? tokens exceed|exceeds the|this|our? model s? max|maximum|token|completion|output limit",
];

/// A request that is longer than the model's context.
pub(super) const CONTEXT: &[&str] = &[
    // What is said of the context.
    "context length|window|size|limit is|was|has? been? exceed|exceeds|exceeded|overflow|overflows|overflowed|full",
    "context length|window|size of # tokens? is|was|has? been? exceeded",
    "context length|window|size limit is|was|has? been? exceeded|reached",
    "context the? overflow|overflows|overflowed",
    "context length *6 not enough",
    "max|maximum allowed|supported|configured? context length|window|size|limit|tokens",
    "max|maximum allowed|supported? prompt length|size",
    "max|maximum allowed|supported? input length|size *6 token|tokens",
    "max|maximum model length|len",
    "max|maximum prompt|input token|tokens limit? is|has|was? been? exceeded",
    "only supports # tokens of context",
    "fit *4 context length|window|size",
    "out of context length|window|space",
    // Too long for it.
    "input|inputs|prompt|request|message|messages|conversation|history body|payload? is|are|was|were? too long|large|big for|to *4 context|model",
    "input|prompt|request|conversation is|was? too long|large *2 token|tokens",
    "prompt|input tokens too long|many",
    "too many prompt|input tokens",
    "too many tokens in|for the|this|your? prompt|input|request|messages|conversation|model",
    "input|inputs|prompt|request|message|messages|conversation|sequence *8 is|are|was|were? longer|larger|greater|bigger|more|higher than *7 context length|window|size|limit?",
    "input|inputs|prompt|request|message|messages|conversation|sequence *8 is|are|was|were? longer|larger|greater|bigger|more|higher than *5 model length|window|size|limit",
    "tokens in the|this|your? prompt|input|request|messages|conversation *3 more|greater|larger|higher than",
    // Beyond its limit.
    "input|inputs|prompt|request|message|messages|conversation|history *8 exceed|exceeds|exceeded|exceeding|overflow|overflows *7 context length|window|size|limit?",
    "exceed|exceeds|exceeded|exceeding|over *3 context length|window|size|limit",
    "input|inputs|prompt|request|message|messages|conversation *6 exceed|exceeds|exceeded the|this|our? model s? max|maximum|total? token|tokens|context|input|prompt limit|limits|length|count|size|window",
    "total number of tokens *6 exceed|exceeds|exceeded *5 max|maximum|limit|limits|length|context|#",
    "number of input|prompt|request tokens *6 exceed|exceeds|exceeded *5 max|maximum|limit|limits|length|context|#",
    "number of tokens in the|this|your? prompt|input|request|messages|conversation *4 exceed|exceeds|exceeded",
    "input|prompt|requested|request|total token|tokens count *4 exceed|exceeds|exceeded *6 max|maximum|limit|limits|length|context|#",
    "input|prompt|requested|request|total token|tokens count *3 but *4 support|supports|allows|accepts",
    "input|prompt token|tokens *4 exceed|exceeds|exceeded *6 max|maximum|limit|length|context|window",
    "prompt length|size *2 exceed|exceeds|exceeded",
    "prompt length|size|tokens must|should be less|shorter|smaller|below|under|at|within|no",
    "input length|size|tokens must|should be less|shorter|smaller|below|under|at|within *6 context|model|token|tokens",
    "input length *2 exceed|exceeds|exceeded *6 context|model|token|tokens",
    "input token count *3 exceeds *2 maximum number of tokens",
    "inputs tokens max new tokens must be",
    "inputs must have less than # tokens",
    "range of input length should be",
    // What to do about it.
    "reduce the length of the|your? input|chat? message|messages|prompt|input|conversation|context",
    "shorter prompt|conversation",
    "~上下文长度|最大上下文|上下文窗口|上下文超|超出上下文|超过上下文|超過上下文|模型最大长度|模型最大输入",
    "~prompt超长|输入超长",
    "prompt ~超长|过长",
    "~コンテキスト長|コンテキストの長さ|コンテキストウィンドウ",
    "~컨텍스트 ~길이|창|윈도우|한도",
    "~kontextlänge|kontextfenster|kontextlaenge",
    "longueur maximale? de|du contexte",
    "fenêtre|fenetre de contexte",
    "longitud máxima|maxima? de|del contexto",
    "ventana|janela de contexto",
    "comprimento máximo? de|do contexto",
    "~длин контекста",
    "контекстного окна",
];

/// An account, or what it paid for, that is used up.
pub(super) const QUOTA: &[&str] = &[
    "insufficient account|user|wallet|prepaid|token|tokens|api|remaining|available? quota|balance|credit|credits|funds",
    "not|t|without have? enough|sufficient account|prepaid|api|remaining? quota|balance|credit|credits|funds",
    "quota|allowance|balance|credit|credits limit|limits? is|are|has|have|was|were? been|completely|fully|already? exceeded|exhausted|reached|depleted|insufficient|empty",
    "quota|allowance|balance|credit|credits is|are|has|have|was|were? been|all|already? used up",
    "quota|allowance|balance|credit|credits for|of|on|in *5 is|has|have|was|were? been? exceeded|exhausted|depleted",
    "quota|balance|credit|credits is|are? not enough|sufficient",
    "credit|credits has|have? run|ran out",
    "exceed|exceeds|exceeded the? current? quota",
    "exceed|exceeds|exceeded|exhausted|reached|hit|used|spent up? your|the|its|their|all *3 quota|allowance|balance|credit|credits",
    "exceed|exceeds|exceeded|exhausted|used|spent up? your|its|their *2 budget",
    "budget has been exceeded|exhausted|reached",
    "usage|spend|spending|billing|credit|budget|plan|subscription hard|soft? limit|limits|cap is|are|has|have|was|were? been? exceeded|exhausted|reached|hit",
    "reached|hit|exceed|exceeds|exceeded your|the|its|their *3 usage|spend|spending|billing|credit|budget|plan|subscription hard|soft? limit|limits|cap",
    "free tier|trial|quota|allowance|credits|plan *8 exhausted|depleted|exceeded|ended|expired|reached",
    "out of credit|credits|budget|quota|funds",
    "credit|account|wallet? balance is? too? low|negative|insufficient|empty",
    "negative balance|credit",
    "no remaining|available|more|sufficient credit|credits|balance|quota|funds",
    "no credit|credits|balance|quota|funds left|remaining|available",
    "requires|require|needs more credits",
    "purchase|buy more? credit|credits",
    "top up|recharge|refill your|the? account|balance|wallet|credits",
    "recharge|refill your|the? account|balance|wallet|credits",
    "check your plan and billing",
    "account *3 arrears|overdue",
    "overdue payment|balance|bill|invoice",
    "payment required",
    "payment|bill|invoice is|was? overdue|declined",
    "billing is|has? not been? active|enabled",
    "~余额不足|额度不足|配额不足|欠费|请充值",
    "~配额已|额度已|余额已|配额用|额度用完|额度用尽|余额用完|配额耗尽|额度耗尽|配额超|额度超",
    "~超出配额|超过配额|超出额度|超过额度|使用上限|用量上限|套餐已到期",
    "~餘額不足|額度不足|配額不足|額度已|配額已",
    "~残高が不足|残高不足|クレジットが不足|クレジット不足|クレジットを使い|割り当てを超|クォータを超|クォータ超過|利用上限",
    "~잔액|크레딧|할당량|한도 ~부족|초과|소진",
    "~잔액부족|크레딧부족|할당량초과",
    "guthaben|kontingent|budget ist|wurde? vollständig|bereits? aufgebraucht|erschöpft|ausgeschöpft|verbraucht|überschritten|erreicht",
    "nicht genug|genügend|ausreichend|ausreichendes guthaben",
    "unzureichendes|kein guthaben",
    "guthaben *3 nicht aus|ausreichend",
    "solde|crédit|crédits|quota est|sont|a|ont? été? insuffisant|insuffisants|épuisé|épuisés|dépassé|atteint",
    "quota dépassé|épuisé",
    "saldo|crédito|créditos|credito|crediti|cuota|cota|quota ha|está|se|é|foi? sido|ha|han? insuficiente|insuficientes|insufficiente|insufficienti|agotado|agotados|agotada|esgotado|esgotados|esgotada|esaurito|esauriti|esaurita|excedida|excedido|superada|superado",
    "недостаточно средств|баланса|кредитов",
    "баланс|квота|кредиты исчерпан|исчерпана|исчерпаны|превышена|пуст",
];

/// The server's own trouble, where no status says so: the pages and lines of gateways, and of models under load.
pub(super) const SERVER: &[&str] = &[
    "overloaded",
    "internal server|service? error",
    "server error|overload",
    "bad gateway",
    "gateway timeout|timed",
    "gateway time out",
    "service|server is? temporarily? unavailable|down|unreachable|busy|restarting",
    "temporarily unable",
    "under maintenance",
    "at capacity",
    "model is? busy",
    "server had an? error",
    "you can retry your request",
    "no healthy upstream|upstreams|host|hosts|backend|backends",
    "no server|backend is available",
    "no available server|servers|backend|backends",
    "backend fetch failed",
    "origin is? unreachable",
    "http|status|code|error code? 409|500|501|502|503|504|505|506|507|508|509|510|511|520|521|522|523|524|525|526|527|529|530",
    "520|521|522|523|524|525|526|527|530 web|connection|origin|a|ssl|invalid|railgun|the|unknown|error",
    "~访问量过大|繁忙",
];
