//! The languages of the sample data, and their word lists (our own, not sentences of a corpus).

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A language of the sample data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Locale {
    /// `de`
    German,
    /// `en`
    English,
    /// `es`
    Spanish,
    /// `fr`
    French,
}

impl Locale {
    /// All languages, sorted by name.
    pub const ALL: [Self; 4] = [Self::German, Self::English, Self::Spanish, Self::French];

    /// Returns the name in Common Voice.
    pub fn name(self) -> &'static str {
        match self {
            Self::German => "de",
            Self::English => "en",
            Self::Spanish => "es",
            Self::French => "fr",
        }
    }

    /// Returns words that carry meaning.
    pub(crate) fn content_words(self) -> &'static [&'static str] {
        match self {
            Self::German => GERMAN,
            Self::English => ENGLISH,
            Self::Spanish => SPANISH,
            Self::French => FRENCH,
        }
    }

    /// Returns function words, which connect the others.
    pub(crate) fn function_words(self) -> &'static [&'static str] {
        match self {
            Self::German => {
                &["der", "die", "das", "und", "ein", "eine", "auf", "mit", "für", "über", "nicht", "sehr"]
            }
            Self::English => {
                &["the", "a", "and", "of", "with", "under", "over", "not", "very", "then", "from", "to"]
            }
            Self::Spanish => {
                &["el", "la", "los", "una", "y", "con", "sobre", "no", "muy", "para", "sin", "desde"]
            }
            Self::French => {
                &["le", "la", "les", "une", "et", "avec", "sous", "pas", "très", "pour", "sans", "vers"]
            }
        }
    }

    /// Returns accents as Common Voice's users name them; the empty one is by far the most common.
    pub(crate) fn accents(self) -> &'static [&'static str] {
        match self {
            Self::German => &["Deutschland Deutsch", "Österreichisches Deutsch", "Schweizerdeutsch"],
            Self::English => &[
                "United States English",
                "England English",
                "India and South Asia (India, Pakistan, Sri Lanka)",
                "Scottish English",
            ],
            Self::Spanish => {
                &["España: Norte peninsular", "México", "Andino-Pacífico: Colombia, Perú, Ecuador"]
            }
            Self::French => &["Français de France", "Français du Canada", "Français de Belgique"],
        }
    }
}

impl fmt::Display for Locale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Locale {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|locale| locale.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::config(format!("the language must be one of {known}; got '{name}'"))
        })
    }
}

const ENGLISH: &[&str] = &[
    "river",
    "stone",
    "window",
    "garden",
    "quiet",
    "morning",
    "train",
    "station",
    "bread",
    "letter",
    "mountain",
    "winter",
    "summer",
    "singer",
    "market",
    "bridge",
    "forest",
    "children",
    "teacher",
    "village",
    "ocean",
    "shadow",
    "paper",
    "thunder",
    "lantern",
    "harbour",
    "yellow",
    "purple",
    "copper",
    "silver",
    "machine",
    "engine",
    "signal",
    "number",
    "question",
    "answer",
    "story",
    "island",
    "captain",
    "sailor",
    "kitchen",
    "butter",
    "honey",
    "pepper",
    "ginger",
    "orange",
    "apple",
    "cherry",
    "feather",
    "falcon",
    "rabbit",
    "horse",
    "donkey",
    "camel",
    "spider",
    "travel",
    "follow",
    "whisper",
    "listen",
    "gather",
    "borrow",
    "measure",
    "remember",
    "discover",
    "carry",
    "answer",
    "slowly",
    "gently",
    "always",
    "never",
    "seldom",
    "often",
    "early",
    "yesterday",
    "tomorrow",
    "between",
    "around",
    "behind",
    "hundred",
    "thousand",
    "seventeen",
    "photograph",
    "telephone",
    "physics",
    "chocolate",
    "orchestra",
    "cheerful",
    "weather",
    "breathing",
    "shoulder",
    "ankle",
    "knuckle",
    "sunlight",
    "moonlight",
    "snowflake",
    "raindrop",
    "zigzag",
    "jigsaw",
    "voyage",
    "treasure",
    "fox",
    "lazy",
    "brown",
    "jump",
    "school",
    "church",
];

const GERMAN: &[&str] = &[
    "Fluss",
    "Stein",
    "Fenster",
    "Garten",
    "Morgen",
    "Bahnhof",
    "Brot",
    "Brief",
    "Berg",
    "Winter",
    "Sommer",
    "Brücke",
    "Wald",
    "Kinder",
    "Lehrerin",
    "Dorf",
    "Schatten",
    "Papier",
    "Donner",
    "Laterne",
    "Hafen",
    "Kupfer",
    "Silber",
    "Maschine",
    "Zeichen",
    "Zahl",
    "Frage",
    "Antwort",
    "Geschichte",
    "Insel",
    "Kapitän",
    "Küche",
    "Butter",
    "Honig",
    "Pfeffer",
    "Ingwer",
    "Äpfel",
    "Kirsche",
    "Feder",
    "Falke",
    "Hase",
    "Pferd",
    "Esel",
    "Spinne",
    "Straße",
    "Größe",
    "Übung",
    "Möwe",
    "Löffel",
    "Gemüse",
    "Frühstück",
    "Schlüssel",
    "Eichhörnchen",
    "Zwölf",
    "fünfzehn",
    "hundert",
    "tausend",
    "gelb",
    "grün",
    "leise",
    "langsam",
    "immer",
    "niemals",
    "selten",
    "oft",
    "früh",
    "gestern",
    "morgen",
    "zwischen",
    "hinter",
    "neben",
    "reisen",
    "folgen",
    "flüstern",
    "hören",
    "sammeln",
    "leihen",
    "messen",
    "erinnern",
    "entdecken",
    "tragen",
    "fröhlich",
    "Wetter",
    "Schulter",
    "Knöchel",
    "Sonnenlicht",
    "Mondschein",
    "Schneeflocke",
    "Regentropfen",
    "Schatz",
    "Fuchs",
    "faul",
    "braun",
    "springen",
    "Schule",
    "Kirche",
    "Zeitung",
    "Wolke",
    "Teller",
];

const SPANISH: &[&str] = &[
    "río",
    "piedra",
    "ventana",
    "jardín",
    "mañana",
    "estación",
    "pan",
    "carta",
    "montaña",
    "invierno",
    "verano",
    "puente",
    "bosque",
    "niños",
    "maestra",
    "pueblo",
    "océano",
    "sombra",
    "papel",
    "trueno",
    "linterna",
    "puerto",
    "amarillo",
    "cobre",
    "plata",
    "máquina",
    "señal",
    "número",
    "pregunta",
    "respuesta",
    "historia",
    "isla",
    "capitán",
    "cocina",
    "mantequilla",
    "miel",
    "pimienta",
    "jengibre",
    "naranja",
    "manzana",
    "cereza",
    "pluma",
    "halcón",
    "conejo",
    "caballo",
    "burro",
    "camello",
    "araña",
    "viajar",
    "seguir",
    "susurrar",
    "escuchar",
    "reunir",
    "medir",
    "recordar",
    "descubrir",
    "llevar",
    "despacio",
    "siempre",
    "nunca",
    "temprano",
    "ayer",
    "entre",
    "detrás",
    "cien",
    "mil",
    "diecisiete",
    "teléfono",
    "física",
    "chocolate",
    "orquesta",
    "alegre",
    "tiempo",
    "hombro",
    "tobillo",
    "luz",
    "luna",
    "nieve",
    "gota",
    "viaje",
    "tesoro",
    "zorro",
    "perezoso",
    "saltar",
    "escuela",
    "iglesia",
];

const FRENCH: &[&str] = &[
    "rivière",
    "pierre",
    "fenêtre",
    "jardin",
    "matin",
    "train",
    "gare",
    "pain",
    "lettre",
    "montagne",
    "hiver",
    "été",
    "chanteur",
    "marché",
    "pont",
    "forêt",
    "enfants",
    "maîtresse",
    "village",
    "océan",
    "ombre",
    "papier",
    "tonnerre",
    "lanterne",
    "port",
    "jaune",
    "violet",
    "cuivre",
    "argent",
    "machine",
    "moteur",
    "signal",
    "nombre",
    "question",
    "réponse",
    "histoire",
    "île",
    "capitaine",
    "marin",
    "cuisine",
    "beurre",
    "miel",
    "poivre",
    "gingembre",
    "orange",
    "pomme",
    "cerise",
    "plume",
    "faucon",
    "lapin",
    "cheval",
    "âne",
    "chameau",
    "araignée",
    "voyager",
    "suivre",
    "chuchoter",
    "écouter",
    "mesurer",
    "découvrir",
    "porter",
    "lentement",
    "toujours",
    "jamais",
    "souvent",
    "hier",
    "demain",
    "entre",
    "derrière",
    "cent",
    "mille",
    "téléphone",
    "physique",
    "chocolat",
    "orchestre",
    "joyeux",
    "temps",
    "épaule",
    "cheville",
    "soleil",
    "lune",
    "flocon",
    "goutte",
    "voyage",
    "trésor",
    "renard",
    "paresseux",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::phone::phones;

    #[test]
    fn every_word_can_be_spoken_and_no_letter_is_unknown() {
        for locale in Locale::ALL {
            for word in locale.content_words().iter().chain(locale.function_words()) {
                assert!(!phones(locale, word).is_empty(), "{word}");
                assert!(word.chars().all(char::is_alphabetic), "{word}");
            }
        }
    }

    #[test]
    fn an_unknown_language_is_rejected_with_the_list_of_known_ones() {
        let error = "tlh".parse::<Locale>().unwrap_err();
        assert!(error.to_string().contains("tlh") && error.to_string().contains("de, en, es, fr"), "{error}");
    }
}
