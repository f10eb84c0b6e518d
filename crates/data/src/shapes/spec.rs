//! The content of an image of shapes, and its captions.

use super::vocabulary::vocabulary;
use std::fmt::Write as _;

vocabulary! {
    /// The shape of an object; its index in [`Shape::ALL`] is the label.
    Shape {
        Circle = "circle", Square = "square", Triangle = "triangle", Diamond = "diamond",
        Star = "star", Cross = "cross", Ring = "ring",
    }
}

vocabulary! {
    /// The colour of an object.
    Colour {
        Red = "red", Green = "green", Blue = "blue", Yellow = "yellow",
        Orange = "orange", Purple = "purple", Pink = "pink", Cyan = "cyan",
    }
}

vocabulary! {
    /// The background colour, never a [`Colour`].
    Background { White = "white", Black = "black", Gray = "gray", Beige = "beige", Brown = "brown" }
}

vocabulary! {
    /// The size of an object.
    Size { Small = "small", Medium = "medium", Large = "large" }
}

vocabulary! {
    /// The position of an object's centre, on a 3×3 grid.
    Position {
        TopLeft = "at the top left", Top = "at the top", TopRight = "at the top right",
        Left = "on the left", Center = "in the center", Right = "on the right",
        BottomLeft = "at the bottom left", Bottom = "at the bottom", BottomRight = "at the bottom right",
    }
}

impl Colour {
    /// Returns red, green and blue, 0 to 255.
    #[must_use]
    pub fn rgb(self) -> [u8; 3] {
        match self {
            Self::Red => [220, 30, 35],
            Self::Green => [30, 150, 60],
            Self::Blue => [35, 75, 215],
            Self::Yellow => [250, 215, 30],
            Self::Orange => [250, 130, 15],
            Self::Purple => [125, 40, 165],
            Self::Pink => [250, 120, 190],
            Self::Cyan => [20, 200, 215],
        }
    }
}

impl Background {
    /// Returns red, green and blue, 0 to 255.
    #[must_use]
    pub fn rgb(self) -> [u8; 3] {
        match self {
            Self::White => [250, 250, 250],
            Self::Black => [10, 10, 10],
            Self::Gray => [128, 128, 128],
            Self::Beige => [232, 218, 190],
            Self::Brown => [92, 58, 34],
        }
    }
}

impl Size {
    /// Returns the radius of the circumscribed circle, as a fraction of the image side.
    #[must_use]
    pub fn radius(self) -> f32 {
        match self {
            Self::Small => 0.14,
            Self::Medium => 0.2,
            Self::Large => 0.27,
        }
    }
}

impl Position {
    /// Returns the name in array names: `top_left`, `center`, …
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::TopLeft => "top_left",
            Self::Top => "top",
            Self::TopRight => "top_right",
            Self::Left => "left",
            Self::Center => "center",
            Self::Right => "right",
            Self::BottomLeft => "bottom_left",
            Self::Bottom => "bottom",
            Self::BottomRight => "bottom_right",
        }
    }

    /// Returns the column and the row in the grid, 0 to 2 each, from the top left.
    #[must_use]
    pub fn column_and_row(self) -> (usize, usize) {
        (self as usize % 3, self as usize / 3)
    }

    /// Returns the centre (x to the right, y down), as fractions of the image side. A large object just fits at every
    /// position.
    #[must_use]
    pub fn centre(self) -> (f32, f32) {
        let (column, row) = self.column_and_row();
        (0.28 + 0.22 * column as f32, 0.28 + 0.22 * row as f32)
    }
}

/// One object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Object {
    /// The shape.
    pub shape: Shape,
    /// The colour.
    pub colour: Colour,
    /// The size.
    pub size: Size,
    /// The position.
    pub position: Position,
}

impl Object {
    /// Returns true if two objects can be in one image: they do not touch, and their names differ.
    #[must_use]
    pub fn goes_with(&self, other: &Self) -> bool {
        let ((ax, ay), (bx, by)) = (self.position.centre(), other.position.centre());
        let apart = (ax - bx).hypot(ay - by);
        (self.shape, self.colour) != (other.shape, other.colour)
            && apart >= self.size.radius() + other.size.radius()
    }

    /// “small red circle”.
    fn noun(&self) -> String {
        format!("{} {} {}", self.size, self.colour, self.shape)
    }
}

/// The content of an image: a background and one or two objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShapeSpec {
    /// The background colour.
    pub background: Background,
    /// The first object, which determines the label.
    pub first: Object,
    /// The second object, if any.
    pub second: Option<Object>,
}

impl ShapeSpec {
    /// The number of wordings of [`caption`](Self::caption).
    pub const NUM_WORDINGS: usize = 3;

    /// Returns the objects, in the order of the caption.
    pub fn objects(&self) -> impl Iterator<Item = Object> {
        std::iter::once(self.first).chain(self.second)
    }

    /// Returns the label: the index of the first object's shape.
    #[must_use]
    pub fn label(&self) -> u32 {
        self.first.shape as u32
    }

    /// Returns a sentence that describes the whole content. `wording` is taken modulo
    /// [`NUM_WORDINGS`](Self::NUM_WORDINGS); 0 is the plain one.
    #[must_use]
    pub fn caption(&self, wording: usize) -> String {
        let Self { background, .. } = self;
        // A noun begins with its size, so the article is always “a”.
        let listed = |place_first: bool| {
            let mut text = String::new();
            for object in self.objects() {
                if !text.is_empty() {
                    text.push_str(" and ");
                }
                // Writing to a string cannot fail.
                let _ = if place_first {
                    write!(text, "{} a {}", object.position, object.noun())
                } else {
                    write!(text, "a {} {}", object.noun(), object.position)
                };
            }
            text
        };
        match wording % Self::NUM_WORDINGS {
            0 => format!("{} on a {background} background", listed(false)),
            1 => format!("a {background} background with {}", listed(false)),
            _ => format!("{}, on a {background} background", listed(true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ShapeSpec {
        let first = Object {
            shape: Shape::Circle,
            colour: Colour::Red,
            size: Size::Small,
            position: Position::TopLeft,
        };
        ShapeSpec { background: Background::White, first, second: None }
    }

    #[test]
    fn captions_read_as_sentences() {
        let mut spec = spec();
        assert_eq!(spec.caption(0), "a small red circle at the top left on a white background");
        assert_eq!(spec.caption(1), "a white background with a small red circle at the top left");
        assert_eq!(spec.caption(2), "at the top left a small red circle, on a white background");
        spec.second = Some(Object { shape: Shape::Star, position: Position::Center, ..spec.first });
        assert_eq!(
            spec.caption(0),
            "a small red circle at the top left and a small red star in the center on a white background"
        );
    }

    #[test]
    fn colours_can_be_told_from_each_other_and_from_backgrounds() {
        let mut all: Vec<[u8; 3]> = Colour::ALL.iter().map(|colour| colour.rgb()).collect();
        all.extend(Background::ALL.iter().map(|background| background.rgb()));
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                let distance: i32 =
                    a.iter().zip(b).map(|(&x, &y)| (i32::from(x) - i32::from(y)).pow(2)).sum();
                assert!(distance > 60 * 60, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn every_object_lies_within_the_picture() {
        for position in Position::ALL {
            for size in Size::ALL {
                let (x, y) = position.centre();
                for edge in [x, y] {
                    assert!(edge - size.radius() > 0.0 && edge + size.radius() < 1.0);
                }
            }
        }
    }

    #[test]
    fn objects_that_touch_or_are_alike_do_not_go_together() {
        let a = spec().first;
        assert!(!a.goes_with(&Object { position: Position::Center, ..a }), "alike");
        assert!(!a.goes_with(&Object { shape: Shape::Star, ..a }), "same place");
        let large = Object { shape: Shape::Star, size: Size::Large, ..a };
        assert!(!a.goes_with(&Object { position: Position::Top, ..large }), "touching");
        assert!(a.goes_with(&Object { position: Position::Right, ..large }));
    }
}
